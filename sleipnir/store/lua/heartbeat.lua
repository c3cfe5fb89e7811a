-- heartbeat: renew the leases of one worker's visits in one partition.
--
-- KEYS[1] leases    ZSET  slp:{p07}:leases
-- ARGV[1] lease_ms  int
-- ARGV[2...] members  run/seq/attempt, ...
--
-- Returns the members that are no longer leased (cancelled, taken back): stop working on them. Calling twice is safe.
local leases = KEYS[1]
local time = redis.call('TIME')
local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])
local lost = {}
for i = 2, #ARGV do
  if redis.call('ZSCORE', leases, ARGV[i]) then
    redis.call('ZADD', leases, until_ms, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
