-- start_turn: accept one run of a thread, with the state of the thread's last run, which need no longer be kept.
--
-- KEYS[1] run       HASH    slp:{p07}:run:<run>
-- KEYS[2] state     HASH    ...:state
-- KEYS[3] journal   LIST    ...:journal
-- KEYS[4] inbox     STREAM  slp:{p07}:inbox
-- KEYS[5] runs      ZSET    slp:{p07}:runs
-- KEYS[6] specs     STRING  ...:spec
-- KEYS[7] thread    HASH    slp:{p07}:thread:<agent>/<name>
-- KEYS[8] threads   ZSET    slp:{p07}:threads
-- KEYS[9] expiring  ZSET    slp:{p07}:expiring
-- KEYS[10] last_state HASH  ...:state of the last run; as those below, not used if `before` is ''
-- KEYS[11] last_run HASH    slp:{p07}:run:<before>
-- KEYS[12] last_spec  STRING  ...:spec of the last run
-- KEYS[13] last_journal  LIST  ...:journal of the last run
-- KEYS[14] last_events  STREAM  ...:events of the last run
-- KEYS[15] last_output  STRING  ...:output of the last run
-- KEYS[16] last_frontier  HASH  ...:frontier of the last run
-- KEYS[17] last_items  HASH  ...:items of the last run
-- KEYS[18] last_windows  HASH  ...:windows of the last run
-- KEYS[19] last_children  HASH  ...:children of the last run
-- KEYS[20] cards    HASH    slp:{p07}:lists; the sets that list the run are named after it
-- ARGV[1] run_id    str
-- ARGV[2] spec      JSON    runs.RunSpec; opaque here
-- ARGV[3] step      JSON    header of journal step 0; gets the time here
-- ARGV[4] name      str     `agent/name`
-- ARGV[5] before    str     the last run of the thread that the caller knows; '' if there is none
-- ARGV[6] version   int     its version
-- ARGV[7] expire_ms int     how long the last run is kept from now on, if its end did not say
-- ARGV[8] card      JSON    runs/cards.py; gets the time here
-- ARGV[9...] changes  state key, JSON text, ...: what the run begins with besides
--
-- Returns {1, ''}    created
--         {0, ''}    a run of this id exists; nothing changed. Calling twice is safe.
--         {-1, run}  the last run is not over, or this one is queued; nothing changed
--         {-2, run}  another run is the last one by now, or it has gone on since it was read; nothing changed
--         {-3, run}  the last run is gone, and its state with it; nothing changed
-- shared: turns
-- shared: lists
local run, state, journal, inbox, runs, specs, thread, threads, expiring, last_state, last_run = unpack(KEYS, 1, 11)
local last_spec, last_journal, last_events, last_output, last_frontier = unpack(KEYS, 12, 16)
local last_items, last_windows, last_children, cards = unpack(KEYS, 17, 20)
local run_id, spec, step, name, before, version, expire_ms, card = unpack(ARGV, 1, 8)

if redis.call('EXISTS', run) == 1 then return {0, ''} end
local refused = turn_refused(thread, last_run, before)
if refused then return refused end
if before ~= '' then
  if redis.call('HGET', last_run, 'version') ~= version then return {-2, before} end
  redis.call('COPY', last_state, state)
  redis.call('PERSIST', state)
  forget_own(state)
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', specs, spec)
redis.call('HSET', run, 'status', 'submitted', 'version', 0, 'seq', 0, 'step', 0, 'created_ms', now_ms)
for i = 9, #ARGV, 2 do redis.call('HSET', state, ARGV[i], ARGV[i + 1]) end
local header = cjson.decode(step)
header.at_ms = now_ms
local entry = {cjson.encode(header)}
local begins = redis.call('HGETALL', state)
for i = 1, #begins, 2 do
  entry[#entry + 1] = cjson.encode(begins[i])
  entry[#entry + 1] = begins[i + 1]
end
redis.call('RPUSH', journal, table.concat(entry, '\n'))
redis.call('ZADD', runs, now_ms, run_id)
list_run(cards, run_id, card_with(card, now_ms))
redis.call('XADD', inbox, '*', 't', 'submitted', 'run', run_id)

if before ~= '' then
  let_go(thread, last_run, {
    last_run, last_spec, last_state, last_journal, last_events, last_output, last_frontier, last_items, last_windows,
    last_children,
  }, expiring, before, expire_ms, now_ms)
end
take_turn(thread, threads, name, run_id, now_ms)
return {1, ''}
