-- answer: accept a person's answer to an open gate, once.
--
-- KEYS[1] gates   HASH    slp:{p07}:run:<run>:gates
-- KEYS[2] inbox   STREAM  slp:{p07}:inbox
-- ARGV[1] run_id  str
-- ARGV[2] seq     int
-- ARGV[3] text    str     JSON text of the answer; opaque here
-- ARGV[4] attempt int     the question that is meant: a visit whose worker is lost again asks again
--
-- Returns  {1}            accepted
--          {0, text}      answered before, with that text; nothing changed
--          {-1}           no such open gate
local gates, inbox = KEYS[1], KEYS[2]
local run_id, seq, text, attempt = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local gate = redis.call('HGET', gates, seq)
if not gate or (cjson.decode(gate).attempt or 1) ~= attempt then return {-1} end
if redis.call('HSETNX', gates, seq .. ':answer', text) == 0 then
  return {0, redis.call('HGET', gates, seq .. ':answer')}
end
redis.call('XADD', inbox, '*', 't', 'answered', 'run', run_id, 'seq', seq, 'attempt', attempt, 'text', text)
return {1}
