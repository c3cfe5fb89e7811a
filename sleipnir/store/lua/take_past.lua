-- take_past: a fork that only refers to a state of its source (fork_run.lua) gets it as its own.
--
-- KEYS[1] source   HASH    slp:{p07}:run:<source>
-- KEYS[2] past     HASH    ...:state of the source
-- KEYS[3] run      HASH    slp:{p07}:run:<run>
-- KEYS[4] state    HASH    ...:state
-- KEYS[5] journal  LIST    ...:journal
-- KEYS[6] timers   ZSET    slp:{p07}:timers
-- KEYS[7] specs    STRING  ...:spec
-- ARGV[1] run_id   str
-- ARGV[2] folded   int     1: the state is in `texts`, computed from the journal of the source
-- ARGV[3...] texts  state key, JSON text, ...
--
-- Returns 1  it has its state, now or from an earlier call. Calling twice is safe.
--         0  the current state of the source is another one, or gone; nothing changed
local source, past, run, state, journal, timers, specs = unpack(KEYS)
local run_id, folded = ARGV[1], ARGV[2] == '1'

local text = redis.call('HGET', run, 'past')
if not text then return 1 end

if folded then
  for i = 3, #ARGV, 2 do redis.call('HSET', state, ARGV[i], ARGV[i + 1]) end
else
  local wanted, of = cjson.decode(text), redis.call('HMGET', source, 'step', 'past')
  if not (wanted.last and of[1]) or tonumber(of[1]) ~= wanted.last or of[2] then return 0 end
  if redis.call('HLEN', past) ~= wanted.keys then return 0 end  -- expired between two keys
  redis.call('COPY', past, state)
  redis.call('PERSIST', state)
end

local is_key, key = false, nil  -- what the fork changes is what its step 0 writes
for line in string.gmatch(redis.call('LINDEX', journal, 0), '\n([^\n]*)') do
  is_key = not is_key
  if is_key then key = cjson.decode(line) else redis.call('HSET', state, key, line) end
end
for node, count in pairs(cjson.decode(redis.call('GET', specs)).fork.checkpoint.counts or {}) do
  redis.call('HSET', run, 'n:' .. node, count)
end
redis.call('HDEL', run, 'past')
redis.call('ZREM', timers, run_id .. '/past')
return 1
