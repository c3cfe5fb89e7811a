-- drop_thread: remove a thread without an unfinished run; its last run expires like others from now on. Once per token.
--
-- KEYS[1] thread    HASH  slp:{p07}:thread:<agent>/<name>
-- KEYS[2] threads   ZSET  slp:{p07}:threads
-- KEYS[3] expiring  ZSET  slp:{p07}:expiring
-- KEYS[4] last_run  HASH  slp:{p07}:run:<run>
-- KEYS[5] last_state HASH  ...:state of the last run
-- KEYS[6] last_spec  STRING  ...:spec of the last run
-- KEYS[7] last_journal  LIST  ...:journal of the last run
-- KEYS[8] last_events  STREAM  ...:events of the last run
-- KEYS[9] last_output  STRING  ...:output of the last run
-- KEYS[10] last_frontier  HASH  ...:frontier of the last run
-- KEYS[11] last_items  HASH  ...:items of the last run
-- KEYS[12] last_windows  HASH  ...:windows of the last run
-- KEYS[13] last_children  HASH  ...:children of the last run
-- ARGV[1] name      str   `agent/name`
-- ARGV[2] last      str   the last run of the thread that the caller knows
-- ARGV[3] expire_ms int   how long it is kept from now on, if its end did not say
-- ARGV[4] token     str   of this removal
--
-- Returns {1, ''}    done, now or by an earlier call with this token: it is kept for a minute. Calling twice is safe.
--         {0, ''}    there is no such thread; nothing changed
--         {-1, run}  the last run is not over, or this one is queued; nothing changed
--         {-2, run}  another run is the last one by now; nothing changed
-- shared: turns
local thread, threads, expiring, last_run, last_state, last_spec, last_journal, last_events = unpack(KEYS, 1, 8)
local last_output, last_frontier, last_items, last_windows, last_children = unpack(KEYS, 9, 13)
local name, last, expire_ms, token = unpack(ARGV)
local REMEMBER_MS = 60000

local known = redis.call('HMGET', thread, 'run', 'busy', 'removed', 'waiting')
if known[3] == token then return {1, ''} end
if not known[1] then return {0, ''} end
if known[1] ~= last then return {-2, known[1]} end
local exists = redis.call('EXISTS', last_run) == 1
if known[2] and exists then return {-1, last} end
if known[4] then return {-1, string.match(known[4], '%S+')} end

local time = redis.call('TIME')
let_go(thread, last_run, {
  last_run, last_spec, last_state, last_journal, last_events, last_output, last_frontier, last_items, last_windows,
  last_children,
}, expiring, last, expire_ms, time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('DEL', thread)
redis.call('ZREM', threads, name)
redis.call('HSET', thread, 'removed', token)
redis.call('PEXPIRE', thread, REMEMBER_MS)
return {1, ''}
