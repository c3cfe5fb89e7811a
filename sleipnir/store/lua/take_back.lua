-- take_back: end a lease that has lapsed, and tell the scheduler. From here on its worker's result is refused.
--
-- KEYS[1] claims   HASH    slp:{p07}:run:<run>:claims
-- KEYS[2] leases   ZSET    slp:{p07}:leases
-- KEYS[3] inbox    STREAM  slp:{p07}:inbox
-- ARGV[1] run_id   str
-- ARGV[2] member   str     run/seq/attempt
-- ARGV[3] seq      int
-- ARGV[4] attempt  int
--
-- Returns  1  taken back
--          0  the lease was renewed, delivered or taken back meanwhile. Any number of reapers may call this at once.
local claims, leases, inbox = KEYS[1], KEYS[2], KEYS[3]
local run_id, member, seq, attempt = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local until_ms = redis.call('ZSCORE', leases, member)
if not until_ms or tonumber(until_ms) > now_ms then return 0 end

redis.call('ZREM', leases, member)
local claimed = redis.call('HGET', claims, seq)
if not claimed then return 0 end
local claim = cjson.decode(claimed)
if claim.attempt ~= attempt then return 0 end
claim.lost = true
redis.call('HSET', claims, seq, cjson.encode(claim))
redis.call('XADD', inbox, '*', 't', 'lease_lost', 'run', run_id, 'seq', seq, 'attempt', attempt, 'worker', claim.worker)
return 1
