-- slots: give a run a slot of its agent, or let it wait for one; or free its slot. Then waiting runs get the free slots,
-- in order of arrival.
--
-- KEYS[1] limit    STRING  slp:{p07}:slots:<digest>:limit
-- KEYS[2] holders  ZSET    ...:holders
-- KEYS[3] waiters  ZSET    ...:waiters
-- KEYS[4] sets     ZSET    slp:{p07}:slots
-- KEYS[5] effects  STREAM  slp:{p07}:effects
-- KEYS[6] known    HASH    slp:{p07}:slots:<digest>:known
-- ARGV[1] digest   str  of the set
-- ARGV[2] wish     str  ask or free
-- ARGV[3] run_id   str
-- ARGV[4] ticket   int  identifies this slot among all slots of the run
-- ARGV[5] most     int  for a new run: the number of slots from now on
-- ARGV[6] look_ms  int  the time until the next check whether the holders still need their slots
-- ARGV[7] source   int  partition of the effect that asks or frees; '' for the check, which has no fence
-- ARGV[8] number   str  its increasing stream id
-- ARGV[9] known_ms int  how long the last number of each source is kept after the last change
--
-- Returns how many runs have got a slot by this call: an effect notifies each of them.
-- Calling twice is safe: a known run keeps its place, and changes no limit. A request after a later one of its source
-- changes nothing, so a run that has freed its slot gets none by a late `ask`. A request later than known_ms may still
-- get one; the check frees it.
local limit, holders, waiters, sets, effects, known = unpack(KEYS)
local digest, wish, run_id, ticket, most, look_ms, source, number, known_ms = unpack(ARGV)

if source ~= '' then
  local last = redis.call('HGET', known, source)
  if last then
    local ms, seq = string.match(number, '^(%d+)-(%d+)$')
    local last_ms, last_seq = string.match(last, '^(%d+)-(%d+)$')
    ms, last_ms = tonumber(ms), tonumber(last_ms)
    if ms < last_ms or (ms == last_ms and tonumber(seq) <= tonumber(last_seq)) then return 0 end
  end
  redis.call('HSET', known, source, number)
  redis.call('PEXPIRE', known, known_ms)
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local member = run_id .. '/' .. ticket
if wish == 'free' then
  redis.call('ZREM', holders, member)
  redis.call('ZREM', waiters, member)
elseif not (redis.call('ZSCORE', holders, member) or redis.call('ZSCORE', waiters, member)) then
  local last = redis.call('ZRANGE', waiters, -1, -1, 'WITHSCORES')[2]
  local place = math.max(time[1] * 1000000 + time[2], tonumber(last or 0) + 1)
  redis.call('ZADD', waiters, string.format('%.0f', place), member)
  redis.call('SET', limit, most)
  redis.call('ZADD', sets, 'NX', now_ms + look_ms, digest)
end

local free = tonumber(redis.call('GET', limit) or 0) - redis.call('ZCARD', holders)
local next_ones = free > 0 and redis.call('ZRANGE', waiters, 0, free - 1) or {}
for _, name in ipairs(next_ones) do
  local run, number = string.match(name, '^(.*)/(%d+)$')
  local told = {['do'] = 'tell_run', run = run, what = 'slot_granted', data = {ticket = tonumber(number)}}
  redis.call('ZREM', waiters, name)
  redis.call('ZADD', holders, now_ms, name)
  redis.call('XADD', effects, '*', 'run', run, 'e', cjson.encode(told))
end
if redis.call('EXISTS', holders, waiters) == 0 then
  redis.call('DEL', limit)
  redis.call('ZREM', sets, digest)
end
return #next_ones
