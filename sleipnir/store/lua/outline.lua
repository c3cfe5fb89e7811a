-- outline: read entries of a journal without their long values.
--
-- KEYS[1] journal  LIST    slp:{p07}:run:<run>:journal
-- ARGV[1] first    int     the first entry
-- ARGV[2] last     int     the last one; -1: that of the journal
-- ARGV[3] longest  int     values of more bytes are left out, but for updates of keys with reducers; -1: of entries that
--                          write anything only the header and the end of its line are read
--
-- Returns  the entries, in order: all of them, or the first ones, at least one. In the place of a value that is left out
--          is `=` and the number of its bytes; no JSON text begins so. Only reads.
-- shared: entries
local journal = KEYS[1]
local first, last, longest = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local AT_ONCE, MOST, MOST_BYTES = 10, 500, 2097152  -- entries per command, then entries and bytes per call

local function without_long_values(entry, header)
  local folds = cjson.decode(header).folds
  if type(folds) ~= 'table' then folds = {} end
  local lines = {header}
  each_value(entry, function(key, first_byte, last_byte)
    local size = last_byte - first_byte + 1
    lines[#lines + 1] = key
    if size > longest and not folds[cjson.decode(key)] then
      lines[#lines + 1] = '=' .. size
    else
      lines[#lines + 1] = string.sub(entry, first_byte, last_byte)
    end
  end)
  return table.concat(lines, '\n')
end

local function outline(entry)
  local ends = string.find(entry, '\n', 1, true)
  if not ends then return entry end
  if longest < 0 then return string.sub(entry, 1, ends) end
  if #entry - ends <= longest then return entry end
  local is_read, short = pcall(without_long_values, entry, string.sub(entry, 1, ends - 1))
  return is_read and short or entry  -- the reader finds out what is wrong with a damaged one
end

local outlines, bytes = {}, 0
while #outlines < MOST and bytes < MOST_BYTES do
  local from = first + #outlines
  local to = last < 0 and from + AT_ONCE - 1 or math.min(from + AT_ONCE - 1, last)
  local entries = from <= to and redis.call('LRANGE', journal, from, to) or {}
  if #entries == 0 then break end
  for _, entry in ipairs(entries) do
    bytes = bytes + #entry
    outlines[#outlines + 1] = outline(entry)
  end
end
return outlines
