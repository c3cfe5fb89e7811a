-- build_lease: take, renew or release the lease for building one knowledge base.
--
-- KEYS[1] build   HASH  slp:knowledge:build:<base>
-- ARGV[1] token   str   identifies the build of the caller
-- ARGV[2] who     str   the caller's name for people
-- ARGV[3] ttl_ms  int   the duration of the lease without another call; 0 releases it
--
-- Returns {1, who, since_ms}  the caller has the lease; with a ttl of 0 it is free now
--         {0, who, since_ms}  another build has it; nothing changed
-- Calling twice is safe. A lapsed lease that no other build has taken can be renewed.
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
