-- first_due: when something is due in one partition.
--
-- KEYS[1] timers     ZSET  slp:{p07}:timers
-- KEYS[2] leases     ZSET  slp:{p07}:leases
-- KEYS[3] outbox     ZSET  slp:{p07}:outbox
-- KEYS[4] schedules  ZSET  slp:{p07}:schedules
-- KEYS[5] jobs       ZSET  slp:{p07}:jobs:due
--
-- Returns for each index the ms until its first entry is due by Redis' clock, below zero if it was due before; '' if
-- the index is empty, or its first entry is never due; 0 if it cannot be read, which shows when it is used. Reads only.
local timers, leases, outbox, schedules, jobs = unpack(KEYS)

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local firsts = {}
for place, index in ipairs({timers, leases, outbox, schedules, jobs}) do
  local first = redis.pcall('ZRANGE', index, 0, 0, 'WITHSCORES')
  local at_ms = first.err and now_ms or tonumber(first[2] or 'inf')
  firsts[place] = at_ms < math.huge and math.floor(at_ms - now_ms) or ''
end
return firsts
