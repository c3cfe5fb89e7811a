-- discard: drop an inbox entry that changes nothing (a duplicate, a late result, a run that is over).
--
-- KEYS[1] inbox    STREAM  slp:{p07}:inbox
-- KEYS[2] run      HASH    slp:{p07}:run:<run>
-- KEYS[3] events   STREAM  ...:events
-- KEYS[4] delta    HASH    ...:delta:<seq>.<attempt>
-- KEYS[5] owner    HASH    slp:{p07}:owner
-- ARGV[1] entry    str     stream id
-- ARGV[2] notices  JSON    [[type, data], ...] for watchers, or '' for none; opaque here
-- ARGV[3] epoch    int     the caller's, as in commit
-- ARGV[4] version  int     the run's version on which the decision is based; -1 if the run does not exist
-- ARGV[5] last     str     the entry that led to that version; '' for none
--
-- Returns  1  dropped, now or before. Calling twice is safe.
--          0  the run is not at that version: the entry may not be a duplicate. Decide again
--         -1  the caller no longer owns this partition
local inbox, run, events, delta, owner = unpack(KEYS)
local entry, notices, epoch, version, last = unpack(ARGV)

if tonumber(redis.call('HGET', owner, 'epoch')) ~= tonumber(epoch) then return -1 end
local found = redis.call('HMGET', run, 'version', 'last_event')
local at = tonumber(found[1] or -1)
if at ~= tonumber(version) or (found[2] or '') ~= last then return 0 end

local dropped = redis.call('XDEL', inbox, entry)
redis.call('DEL', delta)
if dropped == 1 and notices ~= '' and at >= 0 then
  redis.call('XADD', events, 'MAXLEN', '~', 1000, '*', 'e', notices)
end
return 1
