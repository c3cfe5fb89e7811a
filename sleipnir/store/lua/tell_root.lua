-- tell_root: publish events of a descendant run to the watchers of a run, once.
--
-- KEYS[1] run     HASH    slp:{p07}:run:<run>
-- KEYS[2] events  STREAM  ...:events
-- ARGV[1] source  str     kind and source partition of the effect
-- ARGV[2] number  str     its stream id
-- ARGV[3] notices JSON    [[type, data], ...]; opaque here
--
-- Returns  1  published
--          0  published before, or a later effect of this source was, or there is no such run; nothing changed
-- Calling twice is safe: the numbers of one source's effects increase.
local run, events, field, number, notices = KEYS[1], KEYS[2], 'f:' .. ARGV[1], ARGV[2], ARGV[3]

if redis.call('EXISTS', run, events) < 2 then return 0 end
local last = redis.call('HGET', run, field)
if last then
  local ms, seq = string.match(number, '^(%d+)-(%d+)$')
  local last_ms, last_seq = string.match(last, '^(%d+)-(%d+)$')
  ms, last_ms = tonumber(ms), tonumber(last_ms)
  if ms < last_ms or (ms == last_ms and tonumber(seq) <= tonumber(last_seq)) then return 0 end
end
redis.call('HSET', run, field, number)
redis.call('XADD', events, 'MAXLEN', '~', 1000, '*', 'e', notices)
return 1
