-- slots: let a run have a slot of its agent, or wait for one; or take back what it has. Then those that wait get what is
-- free, who came first first.
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
-- ARGV[4] ticket   int  what tells this slot from others that the run had or will have
-- ARGV[5] most     int  of a run that is new here: how many may have a slot from now on
-- ARGV[6] look_ms  int  how long until somebody looks whether those who have a slot still need it
-- ARGV[7] source   int  partition of the effect that asks or frees; '' for the look, which has no fence
-- ARGV[8] number   str  its stream id, which grows
-- ARGV[9] known_ms int  how long the last number of each source is kept after the last change
--
-- Returns how many have got a slot by this call: the partition owes it to each of them to say so.
-- Calling twice is safe: who is known keeps its place, and changes no limit. What comes after a later wish of its source
-- changes nothing, so a run that has freed its slot gets none by an `ask` that comes late. One that comes later than
-- known_ms may get it all the same; that look finds it.
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
