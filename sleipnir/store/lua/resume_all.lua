-- resume_all: resume one partition of a held deployment, a piece at a time. A piece is 2,000 queued visits: those that
-- are not due yet become due, because their messages may have been refused meanwhile. Visits go on from the first piece; the
-- hold ends with the last one, so any caller can continue it.
--
-- KEYS[1] paused   STRING  slp:{p07}:paused
-- KEYS[2] outbox   ZSET    slp:{p07}:outbox
-- KEYS[3] resumed  HASH    slp:{p07}:resumed
-- KEYS[4] audit    STREAM  slp:{p07}:audit
-- KEYS[5] holds    HASH    slp:{p07}:holds
-- ARGV[1] by       str     who resumes it
-- ARGV[2] entry    JSON    of the audit, access/audit.py; '' for none
-- ARGV[3] keep_ms  int     how long entries are kept
--
-- Returns  1  there is more to do: call again
--          0  nothing is held, and all queued visits were due when the hold ended
-- Calling twice is safe: it does the next piece, or nothing.
-- shared: audit
local paused, outbox, resumed, audit, holds = unpack(KEYS)
local by, entry, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local VISITS = 2000

if redis.call('EXISTS', paused) == 0 then return 0 end
redis.call('HSET', holds, 'resumption:*', '{"everything":true,"v":1}')  -- the outbox publishes what is due already
local found = redis.call('ZRANGEBYSCORE', outbox, '(0', '+inf', 'LIMIT', 0, VISITS)
for first = 1, #found, 1000 do
  local scores = {}
  for at = first, math.min(first + 999, #found) do
    scores[#scores + 1] = 0
    scores[#scores + 1] = found[at]
  end
  redis.call('ZADD', outbox, unpack(scores))
end
if #found == VISITS then return 1 end
redis.call('DEL', paused)
redis.call('HDEL', holds, 'resumption:*', 'count:*', 'walked:*')
local time = redis.call('TIME')
redis.call('HSET', resumed, 'by', by, 'at_ms', time[1] * 1000 + math.floor(time[2] / 1000))
if entry ~= '' then add_to_audit(audit, entry, keep_ms) end
return 0
