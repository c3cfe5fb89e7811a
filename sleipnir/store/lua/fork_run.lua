-- fork_run: accept a run that goes on from a checkpoint of another one, its source, in the same partition.
--
-- KEYS[1] source   HASH    slp:{p07}:run:<source>
-- KEYS[2] past     HASH    ...:state of the source
-- KEYS[3] run      HASH    slp:{p07}:run:<run>
-- KEYS[4] state    HASH    ...:state
-- KEYS[5] journal  LIST    ...:journal
-- KEYS[6] inbox    STREAM  slp:{p07}:inbox
-- KEYS[7] runs     ZSET    slp:{p07}:runs
-- KEYS[8] specs    STRING  ...:spec
-- ARGV[1] run_id   str
-- ARGV[2] spec     JSON    runs.RunSpec; opaque here
-- ARGV[3] step     JSON    header of journal step 0; gets the time here
-- ARGV[4] at       int     the state of the source is copied here if this is its last journal step; -1: `values` are the state
-- ARGV[5] fields   int     number of pairs of fields of `run` that follow, then number of pairs of `values`
-- ARGV[6] values   int
-- ARGV[7...] texts  field, value, ... of `run`; state key, JSON text, ... of values; state key, JSON text, ... of the
--                  changes that the fork begins with, which are the writes of its step 0
--
-- Returns 1   created
--         0   a run of this id exists; nothing changed. Calling twice is safe.
--         -1  the source has gone on since, or is gone; nothing changed
local source, past, run, state, journal, inbox, runs, specs = unpack(KEYS)
local run_id, spec, step = unpack(ARGV, 1, 3)
local at, fields, values = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

if redis.call('EXISTS', run) == 1 then return 0 end
if at >= 0 then
  if tonumber(redis.call('HGET', source, 'step')) ~= at then return -1 end
  redis.call('COPY', past, state)
  redis.call('PERSIST', state)
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', specs, spec)
redis.call('HSET', run, 'status', 'submitted', 'version', 0, 'seq', 0, 'step', 0, 'created_ms', now_ms)
local header = cjson.decode(step)
header.at_ms = now_ms
local entry = {cjson.encode(header)}
for i = 7, #ARGV, 2 do
  local number = (i - 7) / 2
  if number < fields then
    redis.call('HSET', run, ARGV[i], ARGV[i + 1])
  else
    redis.call('HSET', state, ARGV[i], ARGV[i + 1])
  end
  if number >= fields + values then
    entry[#entry + 1] = cjson.encode(ARGV[i])
    entry[#entry + 1] = ARGV[i + 1]
  end
end
redis.call('RPUSH', journal, table.concat(entry, '\n'))
redis.call('ZADD', runs, now_ms, run_id)
redis.call('XADD', inbox, '*', 't', 'forked', 'run', run_id)
return 1
