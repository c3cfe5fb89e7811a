-- pause_all: hold the deployment, or a namespace, in one partition: no visit of it is claimed until the hold ends.
--
-- KEYS[1] paused  STRING  slp:{p07}:paused
-- KEYS[2] holds   HASH    slp:{p07}:holds
-- KEYS[3] audit   STREAM  slp:{p07}:audit
-- ARGV[1] scope    str   a namespace; '*' for the deployment
-- ARGV[2] hold     JSON  runs.Hold; opaque here
-- ARGV[3] entry    JSON  of the audit, access/audit.py; '' for none
-- ARGV[4] keep_ms  int   how long entries are kept
--
-- Returns  1  held, now. What was resumed of an earlier hold, which an earlier release has ended, is forgotten.
--          0  it was held before: nothing changed. Calling twice is safe.
-- shared: audit
local paused, holds, audit = KEYS[1], KEYS[2], KEYS[3]
local scope, hold, entry, keep_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local text = redis.call('HGET', holds, 'resumption:' .. scope)
local is_json, found = pcall(cjson.decode, text or '{}')
if is_json and type(found) == 'table' and found.everything == true then  -- that hold is ending: this is another pause
  redis.call('HDEL', holds, 'hold:' .. scope)
  if scope == '*' then redis.call('DEL', paused) end
end
local is_new
if scope == '*' then
  is_new = redis.call('SETNX', paused, hold)
else
  is_new = redis.call('HSETNX', holds, 'hold:' .. scope, hold)
end
if is_new == 0 then return 0 end
redis.call('HDEL', holds, 'resumption:' .. scope, 'count:' .. scope, 'walked:' .. scope)
if entry ~= '' then add_to_audit(audit, entry, keep_ms) end
return 1
