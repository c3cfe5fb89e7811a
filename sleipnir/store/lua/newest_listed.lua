-- newest_listed: the newest members of several lists of one partition together.
--
-- KEYS[1] first     ZSET  slp:{p07}:lists:<name>
-- ARGV[1] most_ms   int   members with a higher score are left out
-- ARGV[2] least_ms  str   those with a lower one too; -inf: none
-- ARGV[3] limit     int   how many are returned at most
-- ARGV[4...] others str   the keys of the other lists
--
-- Returns {member, score, ...}, each member once, in the order of ZREVRANGEBYSCORE. Fewer than `limit`: there are no
-- more. Reads only. Ids of runs have digits and small letters, which any locale orders as bytes.
local first, most_ms, least_ms, limit = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

local found = {}
local function add(key)
  local members = redis.call('ZREVRANGEBYSCORE', key, most_ms, least_ms, 'WITHSCORES', 'LIMIT', 0, limit)
  for at = 1, #members, 2 do found[#found + 1] = {members[at], members[at + 1], tonumber(members[at + 1])} end
end
add(first)
for at = 4, #ARGV do add(ARGV[at]) end
table.sort(found, function(a, b)
  if a[3] ~= b[3] then return a[3] > b[3] end
  return a[1] > b[1]
end)
local newest, last = {}, nil
for _, each in ipairs(found) do
  if #newest == 2 * limit then break end
  if each[1] ~= last then
    newest[#newest + 1], newest[#newest + 2] = each[1], each[2]
    last = each[1]
  end
end
return newest
