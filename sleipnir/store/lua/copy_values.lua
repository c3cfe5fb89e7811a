-- copy_values: a fork that has no state of its own yet gets values from a journal of its past.
--
-- KEYS[1] run      HASH    slp:{p07}:run:<run>
-- KEYS[2] state    HASH    ...:state
-- KEYS[3] journal  LIST    ...:journal of its source, or of a run that the source goes on from
-- ARGV[1...] wanted  of each entry its number, the number of its keys that are copied, and these keys
--
-- Returns 1  copied, or the fork has its state from an earlier call. Calling twice is safe.
--         0  an entry is gone, or lacks a key
-- shared: entries
local run, state, journal = KEYS[1], KEYS[2], KEYS[3]

if redis.call('HEXISTS', run, 'past') == 0 then return 1 end

local at = 1
while at < #ARGV do
  local entry, count = redis.call('LINDEX', journal, ARGV[at]), tonumber(ARGV[at + 1])
  if not entry then return 0 end
  local wanted = {}
  for i = at + 2, at + 1 + count do wanted[ARGV[i]] = true end
  local copied = 0
  each_value(entry, function(key, first, last)
    key = cjson.decode(key)
    if wanted[key] then
      redis.call('HSET', state, key, string.sub(entry, first, last))
      copied = copied + 1
    end
  end)
  if copied ~= count then return 0 end
  at = at + 2 + count
end
return 1
