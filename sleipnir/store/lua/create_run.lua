-- create_run: accept one run. Nothing is planned here: the scheduler reads `submitted` from the inbox.
--
-- KEYS[1] run      HASH    slp:{p07}:run:<run>
-- KEYS[2] state    HASH    ...:state
-- KEYS[3] journal  LIST    ...:journal
-- KEYS[4] inbox    STREAM  slp:{p07}:inbox
-- KEYS[5] runs     ZSET    slp:{p07}:runs
-- KEYS[6] specs    STRING  ...:spec
-- KEYS[7] items    HASH    ...:items
-- KEYS[8] session  HASH    slp:{p07}:session:<agent>/<name>
-- KEYS[9] messages LIST    ...:messages
-- KEYS[10] sessions ZSET   slp:{p07}:sessions
-- KEYS[11] cards   HASH    slp:{p07}:lists; the sets that list the run are named after it
-- ARGV[1] run_id   str
-- ARGV[2] spec     JSON    runs.RunSpec; opaque here
-- ARGV[3] step     JSON    header of journal step 0; gets the time here
-- ARGV[4] in_session  str   `agent/name`; empty: the run is in no session, and the last three keys are not used
-- ARGV[5] listed   int     1: the session is permanent, and listed in `sessions`
-- ARGV[6] instructions_of  str   the current source of dynamic instructions
-- ARGV[7] batch    str     the row of a batch of this run, or of its root run (batches.place_of); '' for none
-- ARGV[8] card     JSON    runs/cards.py; gets the time here
-- ARGV[9...] writes  state key, JSON text, state key, JSON text, ...
--
-- Returns {1, ''}   created; it begins with the messages of its session, and with the session's dynamic instructions, if
--                   their source is the same
--         {0, ''}   a run of this id exists; nothing changed. Calling twice is safe.
--         {-1, run} the session has an unfinished run; nothing changed
-- shared: lists
local run, state, journal, inbox, runs, specs, items, session, messages, sessions, cards = unpack(KEYS)
local run_id, spec, step, in_session, listed, instructions_of, batch, card = unpack(ARGV, 1, 8)

if redis.call('EXISTS', run) == 1 then return {0, ''} end
if in_session ~= '' and redis.call('HEXISTS', session, 'busy') == 1 then
  return {-1, redis.call('HGET', session, 'run')}
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', specs, spec)
redis.call('HSET', run, 'status', 'submitted', 'version', 0, 'seq', 0, 'step', 0, 'created_ms', now_ms)
if batch ~= '' then redis.call('HSET', run, 'batch', batch) end
local header = cjson.decode(step)
header.at_ms = now_ms
local entry = {cjson.encode(header)}
local function write(key, value)
  redis.call('HSET', state, key, value)
  entry[#entry + 1] = cjson.encode(key)
  entry[#entry + 1] = value
end
for i = 9, #ARGV, 2 do write(ARGV[i], ARGV[i + 1]) end
if in_session ~= '' then
  local kept = redis.call('HMGET', session, 'instructions', 'instructions_of')
  if kept[1] and kept[2] == instructions_of then write('_instructions', kept[1]) end
end
redis.call('RPUSH', journal, table.concat(entry, '\n'))
redis.call('ZADD', runs, now_ms, run_id)
list_run(cards, run_id, card_with(card, now_ms))
redis.call('XADD', inbox, '*', 't', 'submitted', 'run', run_id)
if in_session ~= '' then
  redis.call('HSETNX', session, 'created_ms', now_ms)
  redis.call('HSET', session, 'run', run_id, 'busy', 1, 'used_ms', now_ms)
  redis.call('PERSIST', session)
  redis.call('PERSIST', messages)
  if listed == '1' then redis.call('ZADD', sessions, now_ms, in_session) end
  redis.call('HSET', items, 'history', '[' .. table.concat(redis.call('LRANGE', messages, 0, -1), ',') .. ']')
end
return {1, ''}
