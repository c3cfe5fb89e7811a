-- answer: accept a person's answer to an open gate, once.
--
-- KEYS[1] gates   HASH    slp:{p07}:run:<run>:gates
-- KEYS[2] inbox   STREAM  slp:{p07}:inbox
-- ARGV[1] run_id  str
-- ARGV[2] seq     int
-- ARGV[3] text    str     JSON text of the answer; opaque here
--
-- Returns  {1}            accepted
--          {0, text}      answered before, with that text; nothing changed
--          {-1}           no such open gate
local gates, inbox = KEYS[1], KEYS[2]
local run_id, seq, text = ARGV[1], ARGV[2], ARGV[3]

if redis.call('HEXISTS', gates, seq) == 0 then return {-1} end
if redis.call('HSETNX', gates, seq .. ':answer', text) == 0 then
  return {0, redis.call('HGET', gates, seq .. ':answer')}
end
redis.call('XADD', inbox, '*', 't', 'answered', 'run', run_id, 'seq', seq, 'text', text)
return {1}
