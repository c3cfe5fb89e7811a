-- share_values: write and remove shared values of an agent, or of a user of it.
--
-- KEYS[1] values   HASH  slp:{p07}:values:<agent>, or slp:{p07}:values:<agent>/<user>
-- KEYS[2] written  HASH  ...:written
-- KEYS[3] listed   ZSET  slp:{p07}:shared
-- ARGV[1] name       str  as in `listed`
-- ARGV[2] source     int  partition of the effect that writes; '' for a client, whose call has no fence
-- ARGV[3] number     str  its increasing stream id
-- ARGV[4] clear      int  1: remove all values
-- ARGV[5] most_keys  int
-- ARGV[6] most_bytes int  of keys and values
-- ARGV[7] known_ms   int  how long the last number of each source is kept after the last value was removed
-- ARGV[8...] pairs   key, JSON text, ...; an empty text removes the value
--
-- Returns {1, keys, bytes}   what is stored now
--         {0, 0, 0}          an effect that was delivered before, or after a later one of its source: nothing changed
--         {-1, keys, bytes}  that would be too many values for a client: nothing changed
--         error              the same for an effect, which becomes a dead letter
-- Calling twice is safe: the numbers of one source's effects increase, and a client's call sets the same values again.
local values, written, listed = unpack(KEYS)
local name, source, number, clear, most_keys, most_bytes, known_ms = unpack(ARGV, 1, 7)
local FIRST = 8

if source ~= '' then
  local last = redis.call('HGET', written, 'f:' .. source)
  if last then
    local ms, seq = string.match(number, '^(%d+)-(%d+)$')
    local last_ms, last_seq = string.match(last, '^(%d+)-(%d+)$')
    ms, last_ms = tonumber(ms), tonumber(last_ms)
    if ms < last_ms or (ms == last_ms and tonumber(seq) <= tonumber(last_seq)) then return {0, 0, 0} end
  end
end

local keys, bytes = redis.call('HLEN', values), tonumber(redis.call('HGET', written, 'bytes') or 0)
if clear == '1' then keys, bytes = 0, 0 end
for i = FIRST, #ARGV, 2 do
  local key, text = ARGV[i], ARGV[i + 1]
  local before = clear == '1' and 0 or redis.call('HSTRLEN', values, key)
  if before > 0 then
    bytes = bytes - before - #key
    keys = keys - 1
  end
  if text ~= '' then
    bytes = bytes + #text + #key
    keys = keys + 1
  end
end
if keys > tonumber(most_keys) or bytes > tonumber(most_bytes) then
  if source == '' then return {-1, keys, bytes} end
  return redis.error_reply(string.format('ERR the values of %s would be %d with %d bytes, more than %s with %s bytes',
    name, keys, bytes, most_keys, most_bytes))
end

if clear == '1' then redis.call('DEL', values) end
for i = FIRST, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', values, ARGV[i])
  else
    redis.call('HSET', values, ARGV[i], ARGV[i + 1])
  end
end
redis.call('HSET', written, 'bytes', bytes)
if source ~= '' then redis.call('HSET', written, 'f:' .. source, number) end
if keys == 0 then
  redis.call('PEXPIRE', written, known_ms)
  redis.call('ZREM', listed, name)
else
  local time = redis.call('TIME')
  redis.call('PERSIST', written)
  redis.call('ZADD', listed, time[1] * 1000 + math.floor(time[2] / 1000), name)
end
return {1, keys, bytes}
