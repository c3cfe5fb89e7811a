-- put_back: add a queued visit that is in no index to one. Otherwise it would wait forever.
--
-- KEYS[1] frontier  HASH  slp:{p07}:run:<run>:frontier
-- KEYS[2] claims    HASH  ...:claims
-- KEYS[3] outbox    ZSET  slp:{p07}:outbox
-- KEYS[4] leases    ZSET  slp:{p07}:leases
-- ARGV[1] member    str   run/seq/attempt
-- ARGV[2] seq       int
-- ARGV[3] attempt   int
-- ARGV[4] lease_ms  int
--
-- Returns  0  it is not queued, not in this attempt, or it is in an index
--          1  in the outbox now: no worker has claimed it
--          2  under a lease now: a worker has claimed it, and will deliver it or lose its lease
-- Calling twice is safe.
local frontier, claims, outbox, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local member, seq, attempt, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if redis.call('ZSCORE', outbox, member) or redis.call('ZSCORE', leases, member) then return 0 end
local text = redis.call('HGET', frontier, seq)
if not text then return 0 end
local visit = cjson.decode(text)
if visit.attempt ~= attempt or not visit.queue then return 0 end
if visit.ready or visit.failed or visit.ended or visit.wake_ms then return 0 end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local claimed = redis.call('HGET', claims, seq)
local claim = claimed and cjson.decode(claimed)
if not claim or claim.attempt ~= attempt then
  redis.call('ZADD', outbox, now_ms, member)
  return 1
end
if claim.delivered or claim.lost then return 0 end  -- its entry is in the inbox
redis.call('ZADD', leases, now_ms + lease_ms, member)
return 2
