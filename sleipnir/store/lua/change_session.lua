-- change_session: add messages to a session that has no run under way, or remove the session.
--
-- KEYS[1] session   HASH  slp:{p07}:session:<agent>/<name>
-- KEYS[2] messages  LIST  ...:messages
-- KEYS[3] sessions  ZSET  slp:{p07}:sessions
-- ARGV[1] name      str   `agent/name`
-- ARGV[2] remove    int   1: the session is removed
-- ARGV[3...] added  JSON  one message each
--
-- Returns {1, ''}    done. Adding twice adds twice, removing twice is safe.
--         {0, ''}    there is no such session; nothing changed
--         {-1, run}  the session has a run that is not over; nothing changed
local session, messages, sessions, name, remove = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2] == '1'

if redis.call('EXISTS', session) == 0 then return {0, ''} end
if redis.call('HEXISTS', session, 'busy') == 1 then return {-1, redis.call('HGET', session, 'run')} end

if remove then
  redis.call('DEL', session, messages)
  redis.call('ZREM', sessions, name)
end
for i = 3, #ARGV do redis.call('RPUSH', messages, ARGV[i]) end
local left_ms = redis.call('PTTL', session)
if left_ms > 0 then redis.call('PEXPIRE', messages, left_ms) end
return {1, ''}
