-- own: take or keep a partition for one scheduler.
--
-- KEYS[1] owner     HASH    slp:{p07}:owner
-- KEYS[2] paused    STRING  slp:{p07}:paused
-- ARGV[1] instance  str
-- ARGV[2] ttl_ms    int   0 gives it back
--
-- Returns {epoch, held}: the epoch under which `instance` owns the partition, or 0 when another does; 1 while the
-- deployment is paused, else 0. The epoch grows with every change of owner, and commit.lua compares it: a scheduler that
-- was frozen while another took over cannot commit.
local owner, paused, instance, ttl_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local current = redis.call('HMGET', owner, 'instance', 'epoch', 'until_ms')
local holder, epoch, until_ms = current[1], tonumber(current[2] or 0), tonumber(current[3] or 0)
if holder ~= instance then
  if ttl_ms == 0 or until_ms > now_ms then return {0, 0} end
  epoch = epoch + 1
end
redis.call('HSET', owner, 'instance', instance, 'epoch', epoch, 'until_ms', ttl_ms == 0 and 0 or now_ms + ttl_ms)
return {ttl_ms == 0 and 0 or epoch, redis.call('EXISTS', paused)}
