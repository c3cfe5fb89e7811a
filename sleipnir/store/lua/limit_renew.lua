-- limit_renew: renew permits of one limit for another lease.
--
-- KEYS[1] held      ZSET  slp:{limits}:limit:<limit>:held
-- ARGV[1] lease_ms  int
-- ARGV[2] now_ms    int   0: Redis' clock
-- ARGV[3...] holders  run/seq/attempt/turn, ...
--
-- Returns the holders without a permit: released or lapsed. Calling twice is safe.
local held = KEYS[1]
local lease_ms, now_ms = tonumber(ARGV[1]), tonumber(ARGV[2])

if now_ms == 0 then
  local time = redis.call('TIME')
  now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
local lost = {}
for i = 3, #ARGV do
  -- A lapsed lease can be renewed if no other caller has asked for the permit since.
  if redis.call('ZSCORE', held, ARGV[i]) then
    redis.call('ZADD', held, now_ms + lease_ms, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
redis.call('PEXPIRE', held, 7200000)  -- as limit_take
return lost
