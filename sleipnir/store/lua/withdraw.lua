-- withdraw: take a signal that was offered to a visit of a parked run away from it, so that others are asked.
--
-- KEYS[1] inbox    STREAM  slp:{p07}:inbox
-- KEYS[2] effects  STREAM  slp:{p07}:effects
-- KEYS[3] owner    HASH    slp:{p07}:owner
-- ARGV[1] epoch    int     the caller's, as in commit
-- ARGV[2] entry    str     stream id of the inbox entry that offers the signal
-- ARGV[3] age_ms   int     the entry must be as old as this
-- ARGV[4] run      str     id of the run
-- ARGV[5] seq      int     of the visit
-- ARGV[6] attempt  int     of the visit
-- ARGV[7] name     str     of the signal
-- ARGV[8] effect   JSON    transitions.PassSignal; opaque here
--
-- Returns  1  withdrawn: the run has an entry in its place by which the visit gets in line again
--          0  it is too young, or was applied or withdrawn before. Calling twice is safe
--         -1  the caller no longer owns this partition; nothing was changed
local inbox, effects, owner = unpack(KEYS)
local epoch, entry, age_ms, run, seq, attempt, name, effect = unpack(ARGV)

if tonumber(redis.call('HGET', owner, 'epoch')) ~= tonumber(epoch) then return -1 end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if tonumber(string.match(entry, '^(%d+)')) + age_ms > now_ms then return 0 end
if redis.call('XDEL', inbox, entry) == 0 then return 0 end
redis.call('XADD', inbox, '*', 't', 'await_again', 'run', run, 'seq', seq, 'attempt', attempt, 'name', name)
redis.call('XADD', effects, '*', 'run', run, 'e', effect)
return 1
