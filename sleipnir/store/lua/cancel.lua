-- cancel: ask the scheduler to end a run.
--
-- KEYS[1] run     HASH    slp:{p07}:run:<run>
-- KEYS[2] inbox   STREAM  slp:{p07}:inbox
-- ARGV[1] run_id  str
--
-- Returns the status of the run before; a finished run is left alone. False (nil) when there is no such run.
local run, inbox, run_id = KEYS[1], KEYS[2], ARGV[1]

local status = redis.call('HGET', run, 'status')
if status and status ~= 'completed' and status ~= 'failed' and status ~= 'cancelled' then
  redis.call('XADD', inbox, '*', 't', 'cancelled', 'run', run_id)
end
return status
