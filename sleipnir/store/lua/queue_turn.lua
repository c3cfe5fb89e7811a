-- queue_turn: accept one run of a thread that is busy. It begins when the runs before it are over (begin_turn.lua).
--
-- KEYS[1] run       HASH    slp:{p07}:run:<run>
-- KEYS[2] state     HASH    ...:state
-- KEYS[3] journal   LIST    ...:journal
-- KEYS[4] runs      ZSET    slp:{p07}:runs
-- KEYS[5] specs     STRING  ...:spec
-- KEYS[6] thread    HASH    slp:{p07}:thread:<agent>/<name>
-- KEYS[7] threads   ZSET    slp:{p07}:threads
-- KEYS[8] cards     HASH    slp:{p07}:lists; the sets that list the run are named after it
-- ARGV[1] run_id    str
-- ARGV[2] spec      JSON    runs.RunSpec; opaque here
-- ARGV[3] step      JSON    header of journal step 0; gets the time here
-- ARGV[4] name      str     `agent/name`
-- ARGV[5] before    str     the run that comes before it, as the caller knows: the last queued one, else the last run
-- ARGV[6] turns     int     the number of turns that the thread has had, as the caller knows
-- ARGV[7] queued    JSON    runs.QueuedTurn: how its values change the state that it begins with
-- ARGV[8] most      int     maximum number of queued turns of a thread
-- ARGV[9] card      JSON    runs/cards.py; gets the time here
-- ARGV[10...] values  state key, JSON text, ...
--
-- Returns  1  queued
--          0  a run of this id exists; nothing changed. Calling twice is safe.
--         -1  the thread is not busy, or has gone on since it was read; nothing changed
--         -2  it has `most` queued turns; nothing changed
-- shared: lists
local run, state, journal, runs, specs, thread, threads, cards = unpack(KEYS)
local run_id, spec, step, name, before, turns, queued, most, card = unpack(ARGV, 1, 9)

if redis.call('EXISTS', run) == 1 then return 0 end
local known = redis.call('HMGET', thread, 'run', 'busy', 'waiting', 'turns')
local waiting = {}
for id in string.gmatch(known[3] or '', '%S+') do waiting[#waiting + 1] = id end
if not known[1] or (not known[2] and #waiting == 0) then return -1 end
if (waiting[#waiting] or known[1]) ~= before or known[4] ~= turns then return -1 end
if #waiting >= tonumber(most) then return -2 end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', specs, spec)
redis.call('HSET', run, 'status', 'submitted', 'version', 0, 'seq', 0, 'step', 0, 'created_ms', now_ms,
  'queued', queued)
local header = cjson.decode(step)
header.at_ms = now_ms
local entry = {cjson.encode(header)}
for i = 10, #ARGV, 2 do
  redis.call('HSET', state, ARGV[i], ARGV[i + 1])
  entry[#entry + 1] = cjson.encode(ARGV[i])
  entry[#entry + 1] = ARGV[i + 1]
end
redis.call('RPUSH', journal, table.concat(entry, '\n'))
redis.call('ZADD', runs, now_ms, run_id)
list_run(cards, run_id, card_with(card, now_ms))
waiting[#waiting + 1] = run_id
redis.call('HSET', thread, 'waiting', table.concat(waiting, ' '), 'used_ms', now_ms)
redis.call('HINCRBY', thread, 'turns', 1)
redis.call('ZADD', threads, now_ms, name)
return 1
