-- archived: mark finished runs as archived.
--
-- KEYS[1] expiring  ZSET  slp:{p07}:expiring
-- KEYS[2] archived  ZSET  slp:{p07}:archived
-- ARGV[1...] runs   run id, expires_ms (Unix ms, as it was when the run was read), run id, expires_ms, ...
--
-- Returns  int  how many were marked. A run that was revived meanwhile is not marked, even if it is over again; nor is
--               one that was marked before, so calling twice is safe.
local expiring, archived = KEYS[1], KEYS[2]

local noted = 0
for i = 1, #ARGV, 2 do
  local run, expires_ms = ARGV[i], ARGV[i + 1]
  if tonumber(redis.call('ZSCORE', expiring, run)) == tonumber(expires_ms) then
    redis.call('ZREM', expiring, run)
    redis.call('ZADD', archived, expires_ms, run)
    noted = noted + 1
  end
end
return noted
