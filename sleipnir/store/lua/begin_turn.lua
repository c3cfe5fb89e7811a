-- begin_turn: a queued turn of a thread (queue_turn.lua) becomes its last run, with the state of the one before, which
-- need no longer be kept. The caller plans its first step afterwards.
--
-- KEYS[1] run       HASH    slp:{p07}:run:<run>
-- KEYS[2] state     HASH    ...:state
-- KEYS[3] journal   LIST    ...:journal
-- KEYS[4] thread    HASH    slp:{p07}:thread:<agent>/<name>
-- KEYS[5] threads   ZSET    slp:{p07}:threads
-- KEYS[6] expiring  ZSET    slp:{p07}:expiring
-- KEYS[7] last_state HASH   ...:state of the last run
-- KEYS[8] last_run  HASH    slp:{p07}:run:<last>
-- KEYS[9] last_spec  STRING  ...:spec of the last run
-- KEYS[10] last_journal  LIST  ...:journal of the last run
-- KEYS[11] last_events  STREAM  ...:events of the last run
-- KEYS[12] last_output  STRING  ...:output of the last run
-- KEYS[13] last_frontier  HASH  ...:frontier of the last run
-- KEYS[14] last_items  HASH  ...:items of the last run
-- KEYS[15] last_windows  HASH  ...:windows of the last run
-- KEYS[16] last_children  HASH  ...:children of the last run
-- ARGV[1] run_id    str
-- ARGV[2] name      str     `agent/name`
-- ARGV[3] last      str     the last run of the thread that the caller knows
-- ARGV[4] ended_ms  str     when that has ended, as the caller knows; '' if it has read no values of it
-- ARGV[5] expire_ms int     how long it is kept from now on, if its end did not say
-- ARGV[6...] folded  state key, JSON text, ...: values that reducers have made of those of both runs
--
-- Returns {1, ''}    it has its state, now or from an earlier call. Calling twice is safe.
--         {0, ''}    it is not its turn yet, or the last run is another one by now, or has ended again; nothing changed.
--                    The commit that lets it be its turn sends `turn` to the inbox
--         {-3, run}  the last run is gone, and its state with it; nothing changed
-- shared: turns
-- shared: turn_queue
local run, state, journal, thread, threads, expiring, last_state, last_run = unpack(KEYS, 1, 8)
local last_spec, last_journal, last_events, last_output, last_frontier = unpack(KEYS, 9, 13)
local last_items, last_windows, last_children = unpack(KEYS, 14, 16)
local run_id, name, last, ended_ms, expire_ms = unpack(ARGV, 1, 5)

local queued = redis.call('HGET', run, 'queued')
if not queued then return {1, ''} end
local known = redis.call('HMGET', thread, 'run', 'busy', 'waiting')
local first = string.match(known[3] or '', '%S+')
if known[2] or first ~= run_id or known[1] ~= last then return {0, ''} end
if redis.call('EXISTS', last_run) == 0 then return {-3, last} end
if ended_ms ~= '' and redis.call('HGET', last_run, 'ended_ms') ~= ended_ms then return {0, ''} end

local own, defaults = redis.call('HGETALL', state), {}
for _, key in ipairs(cjson.decode(queued).defaults or {}) do defaults[key] = true end
redis.call('DEL', state)
redis.call('COPY', last_state, state)
redis.call('PERSIST', state)
forget_own(state)
for i = 1, #own, 2 do
  if defaults[own[i]] then redis.call('HSETNX', state, own[i], own[i + 1])
  else redis.call('HSET', state, own[i], own[i + 1]) end
end
for i = 6, #ARGV, 2 do redis.call('HSET', state, ARGV[i], ARGV[i + 1]) end

-- step 0 has the whole state, so that the journal needs no earlier run
local entry = {string.match(redis.call('LINDEX', journal, 0), '^[^\n]*')}
local begins = redis.call('HGETALL', state)
for i = 1, #begins, 2 do
  entry[#entry + 1] = cjson.encode(begins[i])
  entry[#entry + 1] = begins[i + 1]
end
redis.call('LSET', journal, 0, table.concat(entry, '\n'))
redis.call('HDEL', run, 'queued')

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
let_go(thread, last_run, {
  last_run, last_spec, last_state, last_journal, last_events, last_output, last_frontier, last_items, last_windows,
  last_children,
}, expiring, last, expire_ms, now_ms)
leave_queue(thread, run_id)
redis.call('HSET', thread, 'run', run_id, 'busy', 1, 'used_ms', now_ms)
redis.call('ZADD', threads, now_ms, name)
return {1, ''}
