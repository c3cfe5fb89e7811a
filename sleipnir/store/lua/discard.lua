-- discard: drop an inbox entry that changes nothing (a duplicate, a late result, a run that is over).
--
-- KEYS[1] inbox   STREAM  slp:{p07}:inbox
-- KEYS[2] run     HASH    slp:{p07}:run:<run>
-- KEYS[3] events  STREAM  ...:events
-- KEYS[4] delta   HASH    ...:delta:<seq>.<attempt>
-- ARGV[1] entry   str     stream id
-- ARGV[2] notices JSON    [[type, data], ...] for watchers, or '' for none; opaque here
--
-- Returns how many entries were dropped. Calling twice is safe.
local inbox, run, events, delta = unpack(KEYS)
local entry, notices = unpack(ARGV)

local dropped = redis.call('XDEL', inbox, entry)
redis.call('DEL', delta)
if dropped == 1 and notices ~= '' and redis.call('EXISTS', run) == 1 then
  redis.call('XADD', events, 'MAXLEN', '~', 1000, '*', 'e', notices)
end
return dropped
