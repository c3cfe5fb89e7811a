-- cache_clear: remove cached results of a node, a page of them, and keep none whose execution has begun before.
--
-- KEYS[1...] all      slp:{c<node>}:cache:index (ZSET), ...:sizes (HASH), ...:use (HASH), and the entry of each of `page`
-- ARGV[1] epoch       str   that begins with this clearing: random, the same for all its pages
-- ARGV[2] keep_ms     int   how long the epoch must be remembered
-- ARGV[3...] page     str   digests of the entries
--
-- Returns  the number of removed entries. Calling twice is safe.
local all = KEYS
local index, sizes, use = unpack(all, 1, 3)
local epoch, keep_ms = ARGV[1], ARGV[2]
local BEFORE_KEYS, BEFORE_PAGE = 3, 2

redis.call('HSET', use, 'epoch', epoch)
redis.call('PEXPIRE', use, keep_ms)
local removed = 0
for i = 1, #ARGV - BEFORE_PAGE do
  local name = ARGV[BEFORE_PAGE + i]
  redis.call('UNLINK', all[BEFORE_KEYS + i])
  removed = removed + redis.call('ZREM', index, name)
  redis.call('HINCRBY', use, 'bytes', -(redis.call('HGET', sizes, name) or 0))
  redis.call('HDEL', sizes, name)
end
return removed
