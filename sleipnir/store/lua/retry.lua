-- retry: ask the scheduler to continue a failed run from where it failed.
--
-- KEYS[1] run     HASH    slp:{p07}:run:<run>
-- KEYS[2] inbox   STREAM  slp:{p07}:inbox
-- ARGV[1] run_id  str
--
-- Returns the status of the run before; only a failed one is continued. False (nil) when there is no such run.
-- Calling twice is safe: the second entry finds a run that is not failed, and changes nothing.
local run, inbox, run_id = KEYS[1], KEYS[2], ARGV[1]

local status = redis.call('HGET', run, 'status')
if status == 'failed' then redis.call('XADD', inbox, '*', 't', 'retried', 'run', run_id) end
return status
