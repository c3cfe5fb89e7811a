-- build_lease: take, keep or give back the right to build one knowledge base.
--
-- KEYS[1] build   HASH  slp:knowledge:build:<base>
-- ARGV[1] token   str   who asks; the same token again is the same build
-- ARGV[2] who     str   for people
-- ARGV[3] ttl_ms  int   how long it is theirs without another call; 0 gives it back
--
-- Returns {1, who, since_ms}  theirs; with a ttl of 0 it is nobody's now
--         {0, who, since_ms}  another one's; nothing changed
-- Calling twice is safe. A lease that has lapsed while nobody took it is as good as one that has not.
local build, token, who, ttl_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

local held = redis.call('HMGET', build, 'token', 'who', 'since_ms')
if held[1] and held[1] ~= token then return {0, held[2], tonumber(held[3])} end

if ttl_ms == 0 then
  redis.call('DEL', build)
  return {1, who, 0}
end
local since_ms = tonumber(held[3] or 0)
if not held[1] then
  local time = redis.call('TIME')
  since_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', build, 'token', token, 'who', who, 'since_ms', since_ms)
end
redis.call('PEXPIRE', build, ttl_ms)
return {1, who, since_ms}
