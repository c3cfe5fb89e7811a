-- take_back: end a lapsed lease, and notify the scheduler. From now on its worker's result is refused.
--
-- KEYS[1] claims   HASH    slp:{p07}:run:<run>:claims
-- KEYS[2] leases   ZSET    slp:{p07}:leases
-- KEYS[3] inbox    STREAM  slp:{p07}:inbox
-- ARGV[1] run_id   str
-- ARGV[2] member   str     run/seq/attempt
-- ARGV[3] seq      int
-- ARGV[4] attempt  int
-- ARGV[5] until_ms int     no effect after this time: the decision is old, and workers may have been disconnected
--
-- Returns  1  taken back
--          0  the lease was renewed, delivered or taken back meanwhile, or the call is too late. Any number of reapers
--             may call this at once. Calling twice is safe.
--
-- A full Redis refuses the first write, as it refuses renewals, so that no lease ends because of that.
local claims, leases, inbox = KEYS[1], KEYS[2], KEYS[3]
local run_id, member, seq, attempt, until_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if now_ms > until_ms then return 0 end
local lapses_ms = redis.call('ZSCORE', leases, member)
if not lapses_ms or tonumber(lapses_ms) > now_ms then return 0 end

local claimed = redis.call('HGET', claims, seq)
local read, claim = pcall(cjson.decode, claimed or 'null')
if not read or type(claim) ~= 'table' or type(claim.worker) ~= 'string' then
  claim = claimed and {attempt = attempt, worker = '?', token = ''}  -- damaged: only the lease is known
end
if not claim or claim.attempt ~= attempt then
  redis.call('ZREM', leases, member)
  return 0
end
claim.lost = true
redis.call('HSET', claims, seq, cjson.encode(claim))
redis.call('ZREM', leases, member)
redis.call('XADD', inbox, '*', 't', 'lease_lost', 'run', run_id, 'seq', seq, 'attempt', attempt, 'worker', claim.worker)
return 1
