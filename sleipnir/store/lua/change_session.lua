-- change_session: add messages to a session without an unfinished run, or remove the session; once per token.
--
-- KEYS[1] session   HASH  slp:{p07}:session:<agent>/<name>
-- KEYS[2] messages  LIST  ...:messages
-- KEYS[3] sessions  ZSET  slp:{p07}:sessions
-- ARGV[1] name      str   `agent/name`
-- ARGV[2] remove    int   1: the session is removed
-- ARGV[3] token     str   of this change
-- ARGV[4...] added  JSON  one message each
--
-- Returns {1, ''}    done, now or by an earlier call with this token. Calling twice is safe unless another change came
--                    between: a removed session keeps its token for a minute, others keep the token of the last change.
--         {0, ''}    there is no such session; nothing changed
--         {-1, run}  the session has a run that is not over; nothing changed
local session, messages, sessions, name, remove, token = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2] == '1', ARGV[3]
local REMEMBER_MS = 60000

local known = redis.call('HMGET', session, 'created_ms', 'changed', 'busy', 'run')
if known[2] == token then return {1, ''} end
if not known[1] then return {0, ''} end
if known[3] then return {-1, known[4]} end

if remove then
  redis.call('DEL', session, messages)
  redis.call('ZREM', sessions, name)
  redis.call('HSET', session, 'changed', token)
  redis.call('PEXPIRE', session, REMEMBER_MS)
  return {1, ''}
end
redis.call('HSET', session, 'changed', token)
for i = 4, #ARGV do redis.call('RPUSH', messages, ARGV[i]) end
local left_ms = redis.call('PTTL', session)
if left_ms > 0 then redis.call('PEXPIRE', messages, left_ms) end
return {1, ''}
