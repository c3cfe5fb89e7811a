-- limit_cool: pause all grants, as requested by the provider.
--
-- KEYS[1] window   HASH  slp:{limits}:limit:<limit>:window
-- ARGV[1] for_ms   int
-- ARGV[2] most_ms  int   the longest pause: after it, one call tries the provider again
-- ARGV[3] now_ms   int   0: Redis' clock
--
-- Returns the end of the pause. A pause is never shortened; calling twice is safe.
local window = KEYS[1]
local for_ms, most_ms, now_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

if now_ms == 0 then
  local time = redis.call('TIME')
  now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
local wished_ms = now_ms + math.min(for_ms, most_ms)
local until_ms = math.max(wished_ms, tonumber(redis.call('HGET', window, 'cool_ms')) or 0)
redis.call('HSET', window, 'cool_ms', until_ms)
redis.call('PEXPIRE', window, 7200000)  -- as limit_take
return until_ms
