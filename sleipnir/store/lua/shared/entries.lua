-- entries: reading journal entries. A script with the line `-- shared: entries` has this text there.

-- Call `each` for the values of an entry: key, as JSON, and the first and the last byte of the value in the entry. A plain
-- search is many times as fast as a pattern: values may have megabytes.
local function each_value(entry, each)
  local at = string.find(entry, '\n', 1, true)
  while at do
    local key_ends = string.find(entry, '\n', at + 1, true)
    local value_ends = string.find(entry, '\n', key_ends + 1, true)
    each(string.sub(entry, at + 1, key_ends - 1), key_ends + 1, (value_ends or #entry + 1) - 1)
    at = value_ends
  end
end
