-- park: mark runs of a partition as parked, with the reason, or remove the marks.
--
-- KEYS[1] parked  HASH  slp:{p07}:parked
-- KEYS[2] owner   HASH  slp:{p07}:owner
-- ARGV[1] epoch   int   the caller's, as in commit
-- ARGV[2...] runs       pairs: run id, JSON (runs.Parked) or '' for a run that is no longer parked; at most 500 pairs
--
-- Returns  1  done. Calling twice is safe.
--         -1  the caller no longer owns this partition; nothing was changed
local parked, owner = unpack(KEYS)
local epoch = ARGV[1]

if tonumber(redis.call('HGET', owner, 'epoch')) ~= tonumber(epoch) then return -1 end
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', parked, ARGV[i])
  else
    redis.call('HSET', parked, ARGV[i], ARGV[i + 1])
  end
end
return 1
