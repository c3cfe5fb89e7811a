-- batch_cells: read the worst state in each of some consecutive cells of rows of a batch.
--
-- KEYS[1] states    STRING  slp:{p00}:batch:<id>:states
-- ARGV[1] first     int     the first row
-- ARGV[2] per_cell  int     rows in a cell
-- ARGV[3] cells     int     how many cells
-- ARGV[4] order     str     the bytes of states, the worst one first
--
-- Returns a byte for each cell that has a row: the first of `order` that one of its rows has. It reads cells x per_cell
-- bytes; the caller asks for at most 50,000. Calling twice is safe: it reads only.
local states = KEYS[1]
local first, per_cell, cells, order = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

local bytes = redis.call('GETRANGE', states, first, first + per_cell * cells - 1)
local found = {}
for at = 1, #bytes, per_cell do
  local cell = string.sub(bytes, at, at + per_cell - 1)
  local worst = string.sub(order, 1, 1)  -- also of a state that this release does not know
  for state in string.gmatch(order, '.') do
    if string.find(cell, state, 1, true) then
      worst = state
      break
    end
  end
  found[#found + 1] = worst
end
return table.concat(found)
