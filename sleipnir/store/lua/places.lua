-- places: find the positions of tasks in a queue, without sending the queue to the client.
--
-- KEYS[1] queue    LIST    slp:broker:<queue>; Celery takes from its right end
-- ARGV[1] depth    int     the number of messages to search, from that end
-- ARGV[2...] ids   task ids, as they are written in JSON
--
-- Returns  per id its position: 1 for the message that is taken next, 0 if it was not found.
local queue, depth = KEYS[1], tonumber(ARGV[1])

local function id_of(message)
  local at, id = 0, nil
  repeat  -- a plain search is faster than the pattern alone
    at = string.find(message, '"id":', at + 1, true)
    id = at and string.match(message, '^"id": ?"(.-)"', at)
  until id or not at
  return id
end

local line = redis.call('LRANGE', queue, -depth, -1)
local place_of = {}
for place = #line, 1, -1 do
  local id = id_of(line[place])
  if id and not place_of[id] then place_of[id] = #line - place + 1 end
end

local places = {}
for i = 2, #ARGV do places[i - 1] = place_of[ARGV[i]] or 0 end
return places
