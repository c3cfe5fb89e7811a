-- retry_child: let a child run that is over go on, for a visit of its parent that is run again.
--
-- KEYS[1] run       HASH    slp:{p07}:run:<run>, the child's
-- KEYS[2] frontier  HASH    ...:frontier
-- KEYS[3] inbox     STREAM  slp:{p07}:inbox
-- KEYS[4] session   HASH    slp:{p07}:session:<agent>/<name>; of a run without one a key that does not exist
-- ARGV[1] run_id    str
-- ARGV[2] seq       int     the visit of its parent that waits for it from here on
-- ARGV[3] attempt   int
-- ARGV[4] by        str     who wants that: the parent
--
-- Returns  1  told, now or by an earlier call, or for a later visit
--          2  it has completed: nothing is left to do, and the visit that waits is noted
--          0  it does not exist any more, was cancelled and has kept nothing, or its session has gone on without it;
--             nothing changed
-- A run that goes on may still be about to end, as the entry that cancels it is ahead in the inbox; until the scheduler
-- has heard of this, it counts as running, and its parent is not told of its end. Calling twice is safe: the numbers of
-- a parent's visits only grow.
local run, frontier, inbox, session, run_id, seq, attempt, by = KEYS[1], KEYS[2], KEYS[3], KEYS[4], unpack(ARGV)

local at = redis.call('HMGET', run, 'status', 'parent_seq')
local status, waits = at[1], tonumber(at[2] or 0)
if not status then return 0 end
if status == 'cancelled' and redis.call('EXISTS', frontier) == 0 and waits < tonumber(seq) then return 0 end
if waits < tonumber(seq) then
  local in_session = status ~= 'completed' and redis.call('HGET', session, 'run')
  if in_session then
    if in_session ~= run_id then return 0 end
    redis.call('HSET', session, 'busy', 1)
  end
  redis.call('HSET', run, 'parent_seq', seq, 'parent_attempt', attempt)
  if status ~= 'completed' then
    redis.call('HSET', run, 'retrying', 1)
    redis.call('XADD', inbox, '*', 't', 'retried', 'run', run_id, 'by', by)
  end
end
return status == 'completed' and 2 or 1
