-- forget: drop the index entries of runs whose keys have expired.
--
-- KEYS[1...] all  slp:{p07}:runs (ZSET), slp:{p07}:expiring or slp:{p07}:archived (ZSET), slp:{p07}:lists (HASH; the sets
--                 that list runs are named after it), and the HASH of each run
-- ARGV[1] revived  str  how to treat an entry of an existing run: `later`, its keys are about to expire, and it stays;
--                       `drop`, the run was revived, and stays only in `runs`
-- ARGV[2...] runs  run id, expires_ms (Unix ms, as it was read from the second index), ... in the order of the keys
--
-- Returns  int  how many entries were dropped from the second index. One whose time has changed since it was read
--               stays. Calling twice is safe.
-- shared: lists
local all, revived = KEYS, ARGV[1]
local runs, index, cards = all[1], all[2], all[3]

local dropped = 0
for i = 4, #all do
  local run, expires_ms = ARGV[2 * i - 6], ARGV[2 * i - 5]
  local is_there = redis.call('EXISTS', all[i]) == 1
  if tonumber(redis.call('ZSCORE', index, run)) == tonumber(expires_ms) and not (is_there and revived == 'later') then
    if not is_there then
      redis.call('ZREM', runs, run)
      list_run(cards, run, '')
    end
    redis.call('ZREM', index, run)
    dropped = dropped + 1
  end
end
return dropped
