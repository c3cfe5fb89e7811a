-- cache_clear: remove cached results of a node, a page of them, and keep none whose execution has begun before.
--
-- KEYS[1] index    ZSET  slp:{c<node>}:cache:index
-- KEYS[2] sizes    HASH  ...:sizes
-- KEYS[3] use      HASH  ...:use
-- ARGV[1] entries  str   the name of an entry without its digest
-- ARGV[2] most     int   entries of one call
-- ARGV[3] epoch    str   that begins with this clearing: random, the same for all its pages
-- ARGV[4] keep_ms  int   how long the epoch must be remembered
--
-- Returns  the number of removed entries: less than `most` if none is left. Calling twice is safe.
local index, sizes, use = unpack(KEYS)
local entries, most, epoch, keep_ms = unpack(ARGV)

redis.call('HSET', use, 'epoch', epoch)
redis.call('PEXPIRE', use, keep_ms)
local page = redis.call('ZRANGE', index, 0, most - 1)
for _, name in ipairs(page) do
  redis.call('UNLINK', entries .. name)
  redis.call('ZREM', index, name)
  redis.call('HINCRBY', use, 'bytes', -(redis.call('HGET', sizes, name) or 0))
  redis.call('HDEL', sizes, name)
end
return #page
