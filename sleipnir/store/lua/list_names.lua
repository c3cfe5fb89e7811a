-- list_names: list names of a namespace as the index of all has them: what an earlier release has added or removed.
--
-- KEYS[1] index         ZSET  slp:{p07}:gates, slp:{p00}:batches
-- KEYS[2] namespaces    SET   ...:of
-- KEYS[3] of_namespace  ZSET  ...:of:<namespace>
-- ARGV[1] namespace  str
-- ARGV[2...] names   names that belong to the namespace, as the caller has read
--
-- Returns how many were added, or removed because the index of all does not have them. Calling twice is safe.
local index, namespaces, of_namespace = unpack(KEYS)
local changed = 0
for i = 2, #ARGV do
  local score = redis.call('ZSCORE', index, ARGV[i])
  if score then
    redis.call('SADD', namespaces, ARGV[1])
    changed = changed + redis.call('ZADD', of_namespace, score, ARGV[i])
  else
    changed = changed + redis.call('ZREM', of_namespace, ARGV[i])
  end
end
return changed
