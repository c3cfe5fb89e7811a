-- resume_run: let one run of a held deployment, or of a held namespace, go on: mark it, and make its queued visits due.
--
-- KEYS[1] run     HASH  slp:{p07}:run:<run>
-- KEYS[2] outbox  ZSET  slp:{p07}:outbox
-- KEYS[3] holds   HASH  slp:{p07}:holds
-- ARGV[1] field   str   resumed_all or resumed_ns
-- ARGV[2] at_ms   int   the time of the hold
-- ARGV[3] scope   str
-- ARGV[4...] members  str  run/seq/attempt of its visits that are known to be queued
--
-- Returns  1  it goes on, and counts among the runs that were resumed
--          0  it is gone, or was marked before: then its visits are made due again. Calling twice is safe.
local run, outbox, holds = KEYS[1], KEYS[2], KEYS[3]
local field, at_ms, scope = ARGV[1], ARGV[2], ARGV[3]

if redis.call('EXISTS', run) == 0 then return 0 end
local was = redis.call('HGET', run, field)
redis.call('HSET', run, field, at_ms)
for at = 4, #ARGV do redis.call('ZADD', outbox, 'XX', 0, ARGV[at]) end
if was == at_ms then return 0 end
redis.call('HINCRBY', holds, 'count:' .. scope, 1)
return 1
