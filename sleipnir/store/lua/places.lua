-- places: where tasks stand in the line of a queue, without sending the line to the client.
--
-- KEYS[1] queue    LIST    slp:broker:<queue>; Celery takes from its right end
-- ARGV[1] depth    int     how many messages to look at, from that end
-- ARGV[2...] ids   task ids, as they are written in JSON
--
-- Returns  per id its place: 1 for the message that is taken next, 0 when it is not there or farther back.
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
