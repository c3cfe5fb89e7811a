-- pause_all: hold one partition of the deployment: no visit of it is claimed until resume_all.
--
-- KEYS[1] paused  STRING  slp:{p07}:paused
-- KEYS[2] audit   STREAM  slp:{p07}:audit
-- ARGV[1] hold     JSON  runs.Hold; opaque here
-- ARGV[2] entry    JSON  of the audit, access/audit.py; '' for none
-- ARGV[3] keep_ms  int   how long entries are kept
--
-- Returns  1  held, now
--          0  it was held before: nothing changed. Calling twice is safe.
-- shared: audit
local paused, audit = KEYS[1], KEYS[2]
local hold, entry, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('SETNX', paused, hold) == 0 then return 0 end
if entry ~= '' then add_to_audit(audit, entry, keep_ms) end
return 1
