-- cache_put: keep the result of a key, and release the lease to make it.
--
-- KEYS[1...] all        slp:{c<node>}:cache:entry:<digest> (STRING), ...:lease:<digest> (STRING), ...:index (ZSET),
--                       ...:sizes (HASH), ...:use (HASH), and the entry of each of `others`
-- ARGV[1] token         str     identifies the execution of the caller
-- ARGV[2] epoch         str     that of cache_take
-- ARGV[3] digest        str
-- ARGV[4] text          JSON    cached_results.CachedResult; opaque here
-- ARGV[5] ttl_ms        int
-- ARGV[6] most_entries  int     of the node
-- ARGV[7] most_bytes    int     of the node
-- ARGV[8...] others     str     digests of entries of the node that make room, those that expire first at the front
--
-- Returns  1  kept
--          0  the lease has lapsed, or the entries were cleared meanwhile: nothing is kept. Calling twice is safe.
local all = KEYS
local entry, lease, index, sizes, use = unpack(all, 1, 5)
local token, epoch, digest, text, ttl_ms = unpack(ARGV, 1, 5)
local most_entries, most_bytes = tonumber(ARGV[6]), tonumber(ARGV[7])
local BEFORE_KEYS, BEFORE_OTHERS = 5, 7
local DAY_MS = 24 * 3600 * 1000

local function drop(name, key)
  local bytes = redis.call('HGET', sizes, name)
  redis.call('UNLINK', key)
  redis.call('ZREM', index, name)
  if bytes then
    redis.call('HDEL', sizes, name)
    redis.call('HINCRBY', use, 'bytes', -bytes)
  end
end

if redis.call('GET', lease) ~= token then return 0 end
redis.call('DEL', lease)
if (redis.call('HGET', use, 'epoch') or '0') ~= epoch then return 0 end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
drop(digest, entry)
redis.call('SET', entry, text, 'PX', ttl_ms)
redis.call('ZADD', index, now_ms + ttl_ms, digest)
redis.call('HSET', sizes, digest, #text)
local bytes = redis.call('HINCRBY', use, 'bytes', #text)
for i = 1, #ARGV - BEFORE_OTHERS do
  local name = ARGV[BEFORE_OTHERS + i]
  local until_ms = name ~= digest and tonumber(redis.call('ZSCORE', index, name))
  if until_ms and (until_ms <= now_ms or redis.call('ZCARD', index) > most_entries or bytes > most_bytes) then
    drop(name, all[BEFORE_KEYS + i])
    bytes = tonumber(redis.call('HGET', use, 'bytes'))
  end
end
local last_ms = tonumber(redis.call('ZRANGE', index, -1, -1, 'WITHSCORES')[2])
redis.call('PEXPIREAT', index, string.format('%.0f', last_ms))
redis.call('PEXPIREAT', sizes, string.format('%.0f', last_ms))
redis.call('PEXPIREAT', use, string.format('%.0f', last_ms + DAY_MS))
return 1
