-- schedule_write: one change of a schedule: a new one, an edit, the fires that are due, a removal.
--
-- KEYS[1] schedule HASH    slp:{p07}:schedule:<name>
-- KEYS[2] log      LIST    ...:log
-- KEYS[3] index    ZSET    slp:{p07}:schedules
-- KEYS[4] effects  STREAM  slp:{p07}:effects
-- KEYS[5] audit    STREAM  slp:{p07}:audit
-- KEYS[6] rows     LIST    ...:rows
-- KEYS[7] staged   LIST    ...:rows:<token>, the rows of a new schedule of batches
-- ARGV[1] name     str
-- ARGV[2] rev      str     the revision that the change is based on; '' for a new schedule
-- ARGV[3] next_rev str     the revision after it, a random token; '' removes the schedule
-- ARGV[4] look_ms  str     when it is looked at next, 'inf' for never
-- ARGV[5] most     int     entries of the log that are kept
-- ARGV[6] fields   int     the number of fields that follow
-- ARGV[7] entries  int     the number of entries of the log that follow these; effects follow them
-- ARGV[8] entry    JSON    of the audit, access/audit.py; '' for none
-- ARGV[9] keep_ms  int     how long entries of the audit are kept
-- ARGV[10...] rest  field, value, ... ; JSON schedules.Fire, the oldest first; JSON transitions.Effect in order
--
-- Returns 1 the change is made, now or by an earlier call with the same arguments
--         0 the schedule has another revision, or is there (not there) although it should not (should) be; nothing
--           changed
-- Calling twice is safe: the first call has set `next_rev`.
-- shared: audit
local schedule, log, index, effects, audit, rows, staged = unpack(KEYS)
local name, rev, next_rev, look_ms, most, fields, entries = unpack(ARGV, 1, 7)
local entry, keep_ms = ARGV[8], tonumber(ARGV[9])

local now = redis.call('HGET', schedule, 'rev') or ''
if now ~= rev then return (now == next_rev) and 1 or 0 end
if entry ~= '' then add_to_audit(audit, entry, keep_ms) end
if next_rev == '' then
  redis.call('DEL', schedule, log, rows)
  redis.call('ZREM', index, name)
  return 1
end
local at = 10
for _ = 1, fields do
  redis.call('HSET', schedule, ARGV[at], ARGV[at + 1])
  at = at + 2
end
redis.call('HSET', schedule, 'rev', next_rev)
if rev == '' and redis.call('EXISTS', staged) == 1 then
  redis.call('RENAME', staged, rows)
  redis.call('PERSIST', rows)
end
for _ = 1, entries do
  redis.call('LPUSH', log, ARGV[at])
  at = at + 1
end
if tonumber(entries) > 0 then redis.call('LTRIM', log, 0, most - 1) end
for i = at, #ARGV do
  redis.call('HSET', schedule, 'effect', redis.call('XADD', effects, '*', 'run', 'schedule ' .. name, 'e', ARGV[i]))
end
redis.call('ZADD', index, look_ms, name)
return 1
