-- stream_write: append text to a node stream, or its end.
--
-- KEYS[1] run   HASH    slp:{p07}:run:<run>
-- KEYS[2] head  HASH    ...:stream:<name>
-- KEYS[3] text  STREAM  ...:stream:<name>:text
-- KEYS[4] read  STRING  ...:stream:<name>:read
-- ARGV[1] place      str  digits, of one length; a text of a lower place than the stored one is refused
-- ARGV[2] owner      int  the visit that writes the stream
-- ARGV[3] base       int  a new place goes on with the text of the same owner, if that has so many characters; else it
--                         begins a new text
-- ARGV[4] at         int  the offset of the piece, in characters
-- ARGV[5] count      int  its number of characters
-- ARGV[6] piece      str
-- ARGV[7] last       str  '', 'end' or 'error': the text ends with this piece
-- ARGV[8] message    str  of an error
-- ARGV[9] expire_ms  int  how long the text is kept after this call
--
-- Returns {1, length, unread}   written; `unread` characters of it were not read by the live reader, if there is one
--         {0, length, unread}   the text has another length than `at`: nothing was written, send from there. A second call
--                               with the same arguments gets this
--         {-1, 0, 0}            obsolete: a later text has replaced this one, or the run is gone
local run, head, text, read = unpack(KEYS)
local place, owner, base, at, count, piece, last, message, expire_ms = unpack(ARGV)
base, at, count = tonumber(base), tonumber(at), tonumber(count)

if redis.call('EXISTS', run) == 0 then return {-1, 0, 0} end
local stored = redis.call('HMGET', head, 'place', 'owner', 'length')
local length = tonumber(stored[3] or 0)
if stored[1] and place < stored[1] then return {-1, 0, 0} end
if place ~= stored[1] then
  if stored[2] ~= owner or length ~= base then
    -- Ids go on: readers that wait for later ones get what follows.
    redis.call('XTRIM', text, 'MAXLEN', 0)
    redis.call('XADD', text, '*', 'k', 'begin', 'o', owner)
    length = 0
  end
  redis.call('HSET', head, 'place', place, 'owner', owner, 'length', length)
  redis.call('HDEL', head, 'done')
end
local applied = at == length and 1 or 0
if applied == 1 then
  if count > 0 then
    redis.call('XADD', text, '*', 'k', 'text', 'o', owner, 'a', at, 't', piece)
    length = length + count
    redis.call('HSET', head, 'length', length)
  end
  if last ~= '' and redis.call('HSETNX', head, 'done', 1) == 1 then
    redis.call('XADD', text, '*', 'k', last, 'o', owner, 't', message)
  end
end
redis.call('PEXPIRE', head, expire_ms)
redis.call('PEXPIRE', text, expire_ms)
local seen = tonumber(redis.call('GET', read) or length)
return {applied, length, math.max(0, length - seen)}
