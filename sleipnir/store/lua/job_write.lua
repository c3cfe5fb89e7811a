-- job_write: one change of a job: a new one, the next piece of it, its end.
--
-- KEYS[1] job      HASH    slp:{p07}:job:<id>
-- KEYS[2] refusals LIST    ...:refusals
-- KEYS[3] jobs     ZSET    slp:{p07}:jobs
-- KEYS[4] due      ZSET    slp:{p07}:jobs:due
-- KEYS[5] audit    STREAM  slp:{p07}:audit
-- ARGV[1] id       str
-- ARGV[2] rev      str     the revision that the change is based on; '' for a new job
-- ARGV[3] next_rev str     the revision after it, a random token
-- ARGV[4] at_ms    int     when the job was submitted
-- ARGV[5] look_ms  int     when it is looked at next; 0: it is over
-- ARGV[6] expire_ms int    how long a job is kept that is over
-- ARGV[7] most     int     refusals that are kept
-- ARGV[8] entry    JSON    of the audit, access/audit.py; '' for none
-- ARGV[9] keep_ms  int     how long entries of the audit are kept
-- ARGV[10] fields  int     the number of fields that follow
-- ARGV[11...] rest field, value, ... ; JSON jobs.Refusal, in order
--
-- Returns 1 the change is made, now or by an earlier call with the same arguments
--         0 the job has another revision, or is there (not there) although it should not (should) be; nothing changed
-- Calling twice is safe: the first call has set `next_rev`.
-- shared: audit
local job, refusals, jobs, due, audit = unpack(KEYS)
local id, rev, next_rev, at_ms, look_ms = unpack(ARGV, 1, 5)
local expire_ms, most, entry, keep_ms, fields = unpack(ARGV, 6, 10)

local now = redis.call('HGET', job, 'rev') or ''
if now ~= rev then return (now == next_rev) and 1 or 0 end
if entry ~= '' then add_to_audit(audit, entry, tonumber(keep_ms)) end
local at = 11
for _ = 1, fields do
  redis.call('HSET', job, ARGV[at], ARGV[at + 1])
  at = at + 2
end
redis.call('HSET', job, 'rev', next_rev)
for each = at, #ARGV do
  redis.call('RPUSH', refusals, ARGV[each])
end
redis.call('LTRIM', refusals, 0, most - 1)
redis.call('ZADD', jobs, at_ms, id)
if look_ms == '0' then
  redis.call('ZREM', due, id)
  redis.call('PEXPIRE', job, expire_ms)
  redis.call('PEXPIRE', refusals, expire_ms)
else
  redis.call('ZADD', due, look_ms, id)
end
return 1
