-- answer: accept a person's answer to an open gate, once.
--
-- KEYS[1] gates   HASH    slp:{p07}:run:<run>:gates
-- KEYS[2] inbox   STREAM  slp:{p07}:inbox
-- KEYS[3] run     HASH    slp:{p07}:run:<run>
-- ARGV[1] run_id  str
-- ARGV[2] seq     int
-- ARGV[3] text    str     JSON text of the answer; opaque here
-- ARGV[4] attempt int     identifies the question: a visit whose worker is lost again asks again
-- ARGV[5] by      str     who answers, and from where
-- ARGV[6] token   str     of this answer, as in tell.lua
--
-- Returns  {1}            accepted, now or by an earlier call with this token, also if the gate is closed since
--          {0, text}      answered before, with that text; nothing changed
--          {-1}           no such open gate
-- Calling twice is safe.
local gates, inbox, run = KEYS[1], KEYS[2], KEYS[3]
local run_id, seq, text, attempt, by, token = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local WISHES_BYTES = 96  -- eight tokens, as in tell.lua

local wishes = redis.call('HGET', run, 'wishes') or ''
if string.find(wishes, token, 1, true) then return {1} end
local gate = redis.call('HGET', gates, seq)
if not gate or (cjson.decode(gate).attempt or 1) ~= attempt then return {-1} end
if redis.call('HSETNX', gates, seq .. ':answer', text) == 0 then
  return {0, redis.call('HGET', gates, seq .. ':answer')}
end
redis.call('HSET', run, 'wishes', string.sub(wishes .. token, -WISHES_BYTES))
redis.call('XADD', inbox, '*', 't', 'answered', 'run', run_id, 'seq', seq, 'attempt', attempt, 'text', text, 'by', by)
return {1}
