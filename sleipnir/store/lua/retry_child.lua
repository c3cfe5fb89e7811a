-- retry_child: continue a child run that is over, for a visit of its parent that is repeated.
--
-- KEYS[1] run       HASH    slp:{p07}:run:<run>, the child's
-- KEYS[2] frontier  HASH    ...:frontier
-- KEYS[3] inbox     STREAM  slp:{p07}:inbox
-- KEYS[4] session   HASH    slp:{p07}:session:<agent>/<name>; of a run without one a key that does not exist
-- ARGV[1] run_id    str
-- ARGV[2] seq       int     the visit of its parent that waits for it from here on
-- ARGV[3] attempt   int
-- ARGV[4] by        str     the requester: the parent
--
-- Returns  1  requested, now or by an earlier call, or for a later visit
--          2  it has completed: nothing to do, and the waiting visit is recorded
--          0  it does not exist any more, was cancelled without kept visits, or its session has continued without it;
--             nothing changed
-- An unfinished run may still be about to end, because an entry that cancels it is ahead in the inbox; until the
-- scheduler has processed the retry, it counts as running, and its parent is not notified of its end. Calling twice is
-- safe: the numbers of a parent's visits only increase.
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
