-- list_sizes: how many members several lists of one partition have, and the time of the oldest of each.
--
-- KEYS[1] first       ZSET  slp:{p07}:lists:<name>
-- ARGV[1...] others   str   the keys of the other lists
--
-- Returns {size, oldest, ...}, for each list; the oldest score is '' of one that is empty. Reads only.
local first = KEYS[1]

local sizes = {}
local function add(key)
  local oldest = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  sizes[#sizes + 1], sizes[#sizes + 2] = oldest and redis.call('ZCARD', key) or 0, oldest or ''
end
add(first)
for _, key in ipairs(ARGV) do add(key) end
return sizes
