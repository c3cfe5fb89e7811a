-- own: take, renew or release a partition for one scheduler.
--
-- KEYS[1] owner     HASH    slp:{p07}:owner
-- KEYS[2] paused    STRING  slp:{p07}:paused
-- KEYS[3] holds     HASH    slp:{p07}:holds
-- ARGV[1] instance  str
-- ARGV[2] ttl_ms    int   0 releases it
-- ARGV[3] generation  str   the one that the caller knows (pulse.lua); '' for none
-- ARGV[4] load        int   the partition's events per second; '' keeps what is recorded, for the next owner
--
-- Returns {epoch, hold, {field, value, ...}}: the epoch under which `instance` owns the partition, or 0 if another
-- does; the hold of the deployment, '' for none; the fields of `holds`. Calling twice is safe.
--
-- The epoch grows with every change of owner and with every generation, and commit.lua compares it: a scheduler that was
-- frozen while another took over, or while Redis was restored, cannot commit. It follows the clock, so that an epoch
-- that was assigned and then lost by Redis is not assigned again.
local owner, paused, holds = KEYS[1], KEYS[2], KEYS[3]
local instance, ttl_ms, generation, load = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local current = redis.call('HMGET', owner, 'instance', 'epoch', 'until_ms', 'generation')
local holder, epoch, until_ms = current[1], tonumber(current[2] or 0), tonumber(current[3] or 0)
-- A lease that ends much later than possible was granted before the clock was set back.
local is_live = until_ms > now_ms and until_ms <= now_ms + 10 * math.max(ttl_ms, 1000)
if holder ~= instance and (ttl_ms == 0 or is_live) then return {0, '', {}} end
if holder ~= instance or (ttl_ms > 0 and (current[4] or '') ~= generation) then
  epoch = math.max(epoch + 1, time[1] * 1000000 + time[2])
end
local measured = load == '' and {} or {'load', load, 'load_of', instance}
redis.call('HSET', owner, 'instance', instance, 'epoch', epoch, 'until_ms', ttl_ms == 0 and 0 or now_ms + ttl_ms,
  'generation', generation, unpack(measured))
return {ttl_ms == 0 and 0 or epoch, redis.call('GET', paused) or '', redis.call('HGETALL', holds)}
