-- deliver: pass a visit's result to the scheduler, if the worker still owns the visit.
--
-- KEYS[1] run       HASH    slp:{p07}:run:<run>
-- KEYS[2] frontier  HASH    ...:frontier
-- KEYS[3] claims    HASH    ...:claims
-- KEYS[4] events    STREAM  ...:events
-- KEYS[5] delta     HASH    ...:delta:<seq>.<attempt>
-- KEYS[6] leases    ZSET    slp:{p07}:leases
-- KEYS[7] inbox     STREAM  slp:{p07}:inbox
-- KEYS[8] late      STRING  slp:{p07}:late
-- ARGV[1] run_id    str
-- ARGV[2] member    str     run/seq/attempt
-- ARGV[3] seq       int
-- ARGV[4] attempt   int
-- ARGV[5] token     str     the token of the claim
-- ARGV[6] worker    str
-- ARGV[7] node      str     for the event of a refusal
-- ARGV[8] header    JSON    messages.ResultHeader; opaque here
-- ARGV[9...] values  state key, JSON text, ...; opaque here
--
-- Returns  1  delivered, now or by an earlier call with this token. Calling twice is safe.
--          0  refused: the visit is over, or another attempt owns it. The run's events get a `late_result`.
local run, frontier, claims, events, delta, leases, inbox, late = unpack(KEYS)
local run_id, member, seq, attempt, token, worker, node, header = unpack(ARGV, 1, 8)

local claimed = redis.call('HGET', claims, seq)
local claim = claimed and cjson.decode(claimed)
local visit = redis.call('HGET', frontier, seq)
local owned = visit and claim and claim.token == token and not claim.lost
  and cjson.decode(visit).attempt == tonumber(attempt)
if not owned then
  redis.call('INCR', late)
  if redis.call('EXISTS', run) == 1 then
    redis.call('XADD', events, 'MAXLEN', '~', 1000, '*', 'e',
      cjson.encode({{'late_result', {seq = tonumber(seq), node = node, attempt = tonumber(attempt), worker = worker}}}))
  end
  return 0
end
if claim.delivered then return 1 end

for i = 9, #ARGV, 2 do redis.call('HSET', delta, ARGV[i], ARGV[i + 1]) end
redis.call('XADD', inbox, '*', 't', 'result', 'run', run_id, 'seq', seq, 'attempt', attempt, 'h', header)
redis.call('ZREM', leases, member)
claim.delivered = true
redis.call('HSET', claims, seq, cjson.encode(claim))
return 1
