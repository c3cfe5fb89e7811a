-- dead_letter: move an effect that cannot be delivered to the dead letters, or back to the effects.
--
-- KEYS[1] effects  STREAM  slp:{p07}:effects
-- KEYS[2] dead     STREAM  slp:{p07}:dead
-- ARGV[1] wish     str     bury (effects to dead) or redeliver (dead to effects)
-- ARGV[2] id       str     stream id of the entry in its current stream
-- ARGV[3] reason   str     for bury: why it cannot be delivered
-- ARGV[4] most     int     for bury: the most entries of the stream of dead letters
--
-- Returns  1  moved
--          0  there is no such entry (any more). Calling twice is safe: the second call finds none.
--         -1  for bury: the stream of dead letters is full; the effect stays in its stream
local effects, dead, wish, id, reason, most = KEYS[1], KEYS[2], unpack(ARGV)
local from = wish == 'bury' and effects or dead

local entry = redis.call('XRANGE', from, id, id)[1]
if not entry then return 0 end
local fields = {}
for i = 1, #entry[2], 2 do
  if entry[2][i] ~= 'reason' and entry[2][i] ~= 'was' then
    fields[#fields + 1] = entry[2][i]
    fields[#fields + 1] = entry[2][i + 1]
  end
end
if wish == 'bury' then
  if redis.call('XLEN', dead) >= tonumber(most) then return -1 end
  redis.call('XADD', dead, '*', 'reason', reason, 'was', id, unpack(fields))
else
  redis.call('XADD', effects, '*', unpack(fields))
end
redis.call('XDEL', from, id)
return 1
