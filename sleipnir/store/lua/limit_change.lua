-- limit_change: give a limit other bounds than those of limits.yaml, or take that back.
--
-- KEYS[1] changes  HASH    slp:{limits}:changes
-- KEYS[2] audit    STREAM  slp:{limits}:audit
-- ARGV[1] pattern  str   of the limit
-- ARGV[2] before   JSON  models.LimitChange, as it was read; '' for none
-- ARGV[3] after    JSON  the new one; '' takes it back
-- ARGV[4] entry    JSON  of the audit, access/audit.py
-- ARGV[5] keep_ms  int   how long entries are kept
--
-- Returns  1  changed, now or by an earlier call
--          0  it has changed since it was read; nothing is done. Calling twice is safe.
-- shared: audit
local changes, audit = KEYS[1], KEYS[2]
local pattern, before, after, entry, keep_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local now = redis.call('HGET', changes, pattern) or ''
if now == after then return 1 end
if now ~= before then return 0 end
if after == '' then redis.call('HDEL', changes, pattern) else redis.call('HSET', changes, pattern, after) end
add_to_audit(audit, entry, keep_ms)
return 1
