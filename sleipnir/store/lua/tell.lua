-- tell: pass a person's wish about a run on to the scheduler, if the run is in a state for it.
--
-- KEYS[1] run     HASH    slp:{p07}:run:<run>
-- KEYS[2] inbox   STREAM  slp:{p07}:inbox
-- KEYS[3] session HASH    slp:{p07}:session:<agent>/<name>; of a run without one a key that does not exist
-- ARGV[1] run_id  str
-- ARGV[2] type    str     cancelled, paused, resumed, retried, child_gone or told
-- ARGV[3...] fields  name, text, ... of the inbox entry
--
-- Returns the status of the run before; False (nil) when there is no such run. `retried` is for a failed run, all else
-- for one that has not ended; otherwise nothing changes. A run that is not paused may be resumed: the entry that pauses
-- it may be ahead in the inbox. A failed run that is to be retried counts as running from here on, as does a child run
-- that was cancelled (retry_child.lua): what is told now comes behind that in the inbox. Calling twice is safe: the
-- planner ignores what is done already. Returns 'left' for a failed run that cannot be retried, because its session has
-- gone on without it.
local run, inbox, session, run_id, type = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]

local status = redis.call('HGET', run, 'status')
local ended = status == 'completed' or status == 'failed' or status == 'cancelled'
if type ~= 'retried' and ended and status ~= 'completed' and redis.call('HEXISTS', run, 'retrying') == 1 then
  ended, status = false, 'running'
end
local fits = status and not ended
if type == 'retried' then fits = status == 'failed' end
if fits and type == 'retried' then
  local last = redis.call('HGET', session, 'run')
  if last and last ~= run_id then return 'left' end
  if last then redis.call('HSET', session, 'busy', 1) end
  redis.call('HSET', run, 'retrying', 1)
end
if fits then redis.call('XADD', inbox, '*', 't', type, 'run', run_id, unpack(ARGV, 3)) end
return status
