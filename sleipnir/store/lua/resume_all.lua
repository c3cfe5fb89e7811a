-- resume_all: let one partition of a held deployment go on.
--
-- KEYS[1] paused  STRING  slp:{p07}:paused
-- KEYS[2] outbox  ZSET    slp:{p07}:outbox
--
-- Returns how many queued visits are due for publication now: all of them, as their messages may have been refused
-- meanwhile. 0 when nothing was held. Calling twice is safe.
local paused, outbox = KEYS[1], KEYS[2]

if redis.call('DEL', paused) == 0 then return 0 end
return redis.call('ZUNIONSTORE', outbox, 1, outbox, 'WEIGHTS', 0)
