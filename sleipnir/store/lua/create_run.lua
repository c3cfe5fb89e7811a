-- create_run: accept one run. Nothing is planned here: the scheduler reads `submitted` from the inbox.
--
-- KEYS[1] run      HASH    slp:{p07}:run:<run>
-- KEYS[2] state    HASH    ...:state
-- KEYS[3] journal  LIST    ...:journal
-- KEYS[4] inbox    STREAM  slp:{p07}:inbox
-- KEYS[5] runs     ZSET    slp:{p07}:runs
-- KEYS[6] specs    STRING  ...:spec
-- ARGV[1] run_id   str
-- ARGV[2] spec     JSON    runs.RunSpec; opaque here
-- ARGV[3] step     JSON    header of journal step 0; gets the time here
-- ARGV[4...] writes  state key, JSON text, state key, JSON text, ...
--
-- Returns  1  created
--          0  a run of this id exists; nothing changed. Calling twice is safe.
local run, state, journal, inbox, runs, specs = unpack(KEYS)
local run_id, spec, step = ARGV[1], ARGV[2], ARGV[3]

if redis.call('EXISTS', run) == 1 then return 0 end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', specs, spec)
redis.call('HSET', run, 'status', 'submitted', 'version', 0, 'seq', 0, 'step', 0, 'created_ms', now_ms)
local header = cjson.decode(step)
header.at_ms = now_ms
local entry = {cjson.encode(header)}
for i = 4, #ARGV, 2 do
  redis.call('HSET', state, ARGV[i], ARGV[i + 1])
  entry[#entry + 1] = cjson.encode(ARGV[i])
  entry[#entry + 1] = ARGV[i + 1]
end
redis.call('RPUSH', journal, table.concat(entry, '\n'))
redis.call('ZADD', runs, now_ms, run_id)
redis.call('XADD', inbox, '*', 't', 'submitted', 'run', run_id)
return 1
