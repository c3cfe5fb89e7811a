-- hand_back: return a visit before its lease lapses, because its worker cannot continue. Another may start it at once.
--
-- KEYS[1] claims   HASH    slp:{p07}:run:<run>:claims
-- KEYS[2] leases   ZSET    slp:{p07}:leases
-- KEYS[3] inbox    STREAM  slp:{p07}:inbox
-- ARGV[1] run_id   str
-- ARGV[2] member   str     run/seq/attempt
-- ARGV[3] seq      int
-- ARGV[4] attempt  int
-- ARGV[5] token    str     the token of the claim
-- ARGV[6] reason   str     why: `drain`, the worker stops; `process_lost`, the process of the visit has died, like a
--                          worker; `machine`, the worker did not begin the node's work; `directory`, it does not have
--                          the working directory of the run
--
-- Returns  1  handed back; the scheduler reads `lease_lost` with this reason
--          0  not claimed so (cancelled, delivered, taken back), or handed back by an earlier call. Calling twice is safe.
local claims, leases, inbox = KEYS[1], KEYS[2], KEYS[3]
local run_id, member, seq, attempt, token, reason = unpack(ARGV)

local claimed = redis.call('HGET', claims, seq)
if not claimed then return 0 end
local claim = cjson.decode(claimed)
if claim.token ~= token or claim.delivered or claim.lost then return 0 end
if redis.call('ZREM', leases, member) == 0 then return 0 end

claim.lost = true
redis.call('HSET', claims, seq, cjson.encode(claim))
redis.call('XADD', inbox, '*', 't', 'lease_lost', 'run', run_id, 'seq', seq, 'attempt', attempt,
  'worker', claim.worker, 'reason', reason)
return 1
