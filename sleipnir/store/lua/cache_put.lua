-- cache_put: keep the result of a key, and release the lease to make it.
--
-- KEYS[1] entry         STRING  slp:{c<node>}:cache:entry:<digest>
-- KEYS[2] lease         STRING  ...:lease:<digest>
-- KEYS[3] index         ZSET    ...:index
-- KEYS[4] sizes         HASH    ...:sizes
-- KEYS[5] use           HASH    ...:use
-- ARGV[1] token         str     identifies the execution of the caller
-- ARGV[2] epoch         str     that of cache_take
-- ARGV[3] digest        str
-- ARGV[4] text          JSON    cached_results.CachedResult; opaque here
-- ARGV[5] ttl_ms        int
-- ARGV[6] most_entries  int     of the node
-- ARGV[7] most_bytes    int     of the node
-- ARGV[8] entries       str     the name of an entry without its digest: others of the node make room
--
-- Returns  1  kept
--          0  the lease has lapsed, or the entries were cleared meanwhile: nothing is kept. Calling twice is safe.
local entry, lease, index, sizes, use = unpack(KEYS)
local token, epoch, digest, text, ttl_ms = unpack(ARGV, 1, 5)
local most_entries, most_bytes, entries = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local MOST_AT_ONCE = 100  -- entries that make room for one: more of them do with the next ones
local DAY_MS = 24 * 3600 * 1000

local function drop(name)
  local bytes = redis.call('HGET', sizes, name)
  redis.call('UNLINK', entries .. name)
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
for _, name in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now_ms, 'LIMIT', 0, MOST_AT_ONCE)) do drop(name) end
drop(digest)
redis.call('SET', entry, text, 'PX', ttl_ms)
redis.call('ZADD', index, now_ms + ttl_ms, digest)
redis.call('HSET', sizes, digest, #text)
local bytes = redis.call('HINCRBY', use, 'bytes', #text)
local count = redis.call('ZCARD', index)
for _, name in ipairs(redis.call('ZRANGE', index, 0, MOST_AT_ONCE)) do
  if count <= most_entries and bytes <= most_bytes then break end
  if name ~= digest then
    drop(name)
    count, bytes = count - 1, tonumber(redis.call('HGET', use, 'bytes'))
  end
end
local last_ms = tonumber(redis.call('ZRANGE', index, -1, -1, 'WITHSCORES')[2])
redis.call('PEXPIREAT', index, string.format('%.0f', last_ms))
redis.call('PEXPIREAT', sizes, string.format('%.0f', last_ms))
redis.call('PEXPIREAT', use, string.format('%.0f', last_ms + DAY_MS))
return 1
