-- count_entries: how many entries some streams and sorted sets have in all.
--
-- KEYS[1...] all   STREAM and ZSET, e.g. slp:{p07}:inbox and slp:{p07}:leases; first the streams
-- ARGV[1] streams  int  how many of them are streams
--
-- Returns the number. Reads only. In a cluster the keys are of one partition.
local all, streams, count = KEYS, tonumber(ARGV[1]), 0
for place, key in ipairs(all) do
  if place <= streams then
    count = count + redis.call('XLEN', key)
  else
    count = count + redis.call('ZCARD', key)
  end
end
return count
