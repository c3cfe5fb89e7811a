-- signals: a signal was sent, a visit waits for signals of a name or waits no more, declines one, or is passed over;
-- then tell waiting visits of signals that they have not been told of, some at a time.
--
-- KEYS[1] board   HASH    slp:{p07}:signals:<digest>
-- KEYS[2] log     ZSET    ...:log, all signals of the name by number
-- KEYS[3] every   ZSET    ...:every, visits that want every signal, by the last one that they were told of
-- KEYS[4] one     ZSET    ...:one, visits that want a signal for themselves, in order of arrival
-- KEYS[5] due     ZSET    ...:due, signals to be offered to the next of `one`
-- KEYS[6] left    ZSET    ...:left, signals that none of `one` wants
-- KEYS[7] waits   ZSET    slp:{p07}:waits
-- KEYS[8] recent  STREAM  slp:{p07}:signals
-- KEYS[9] effects STREAM  slp:{p07}:effects
-- KEYS[10] awaited ZSET   slp:{p07}:awaited
-- KEYS[11] waiting STRING slp:{p07}:waiting
-- ARGV[1] name     str
-- ARGV[2] wish     str  send, await, leave, decline, pass or spread
-- ARGV[3] who      str  send: the id of the signal; await, leave, decline, pass: `run/seq/attempt`
-- ARGV[4] number   str  await: the first signal that counts; leave: the signal that was taken, or ''; decline, pass: the
--                       signal
-- ARGV[5] kind     str  await: every, one, or sure (one, and it takes the first)
-- ARGV[6] data     JSON send; opaque here
-- ARGV[7] source   int  partition of the effect that awaits, leaves, declines or passes; '' for no fence
-- ARGV[8] fence    str  its increasing stream id
-- ARGV[9] keep_ms  int  how long signals are kept
-- ARGV[10] most    int  signals of a name that are kept
-- ARGV[11] bytes   int  bytes of data of a name that are kept
-- ARGV[12] page    int  visits that one call tells
--
-- Returns  {number, new, told}: send: the number of the signal in microseconds since the epoch, 0 if a signal with this
--          id was there before, and how many visits this call has told; number is '' for the other wishes
-- Calling twice is safe: an id is known as long as its signal is kept; a request after a later one of its source changes
-- nothing. An effect tells each visit, and another one calls this again if there is more to do. A visit that waits again,
-- because its node has lost that it did, is told again.
local board, log, every, one, due, left, waits, recent, effects, awaited, waiting = unpack(KEYS)
local name, wish, who, number, kind, data, source, fence, keep_ms, most, most_bytes, page = unpack(ARGV)
local MOST_BYTES_TOLD = 512 * 1024  -- in one call: encoding takes 2 us for each kB
local LOOKED = 1000  -- visits and signals that one call passes over
local LOOK_MS = 60000

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local function text_of(figure) return string.format('%.0f', figure) end

-- A number that no signal and no visit of the name has had.
local function next_number()
  local newest = math.max(time[1] * 1000000 + time[2], tonumber(redis.call('HGET', board, 'last') or 0) + 1)
  redis.call('HSET', board, 'last', text_of(newest))
  return newest
end

if source ~= '' then
  local last = redis.call('HGET', board, 'f:' .. source)
  if last then
    local ms, seq = string.match(fence, '^(%d+)-(%d+)$')
    local last_ms, last_seq = string.match(last, '^(%d+)-(%d+)$')
    ms, last_ms = tonumber(ms), tonumber(last_ms)
    if ms < last_ms or (ms == last_ms and tonumber(seq) <= tonumber(last_seq)) then return {'', 0, 0} end
  end
  redis.call('HSET', board, 'f:' .. source, fence)
end

local told, room, bytes, looked = 0, tonumber(page), MOST_BYTES_TOLD, LOOKED
local function tell(visit, signal, is_one)
  local run, seq, attempt = string.match(visit, '^(.*)/(%d+)/(%d+)$')
  local found = redis.call('HMGET', board, 'i:' .. signal, 'd:' .. signal)
  if not found[1] then return end
  local news = {seq = tonumber(seq), attempt = tonumber(attempt), name = name, number = signal, id = found[1],
    data = found[2], one = is_one}
  local effect = {['do'] = 'tell_run', run = run, what = 'signalled', data = news}
  redis.call('XADD', effects, '*', 'run', run, 'e', cjson.encode(effect))
  told, room, bytes = told + 1, room - 1, bytes - #found[2]
end

local function has_room() return room > 0 and bytes > 0 and looked > 0 end

-- Signals that are too old or too many are dropped, unless a visit has still to be told of them.
local function drop_old()
  local behind = redis.call('ZRANGE', every, 0, 0, 'WITHSCORES')[2]
  for _ = 1, 100 do
    local oldest = redis.call('ZRANGE', log, 0, 0)[1]
    if not oldest or (behind and tonumber(behind) < tonumber(oldest)) then return end
    local is_old = tonumber(oldest) < (now_ms - keep_ms) * 1000
    local kept = tonumber(redis.call('HGET', board, 'bytes') or 0)
    if not is_old and redis.call('ZCARD', log) <= tonumber(most) and kept <= tonumber(most_bytes) then return end
    local found = redis.call('HMGET', board, 'i:' .. oldest, 'd:' .. oldest)
    redis.call('HDEL', board, 'i:' .. oldest, 'd:' .. oldest, 't:' .. oldest, 'h:' .. oldest, 'k:' .. (found[1] or ''))
    redis.call('HINCRBY', board, 'bytes', -#(found[2] or ''))
    for _, set in ipairs({log, due, left}) do redis.call('ZREM', set, oldest) end
  end
end

-- Tell the visits that want every signal of the next ones.
local function spread()
  local newest = redis.call('ZREVRANGE', log, 0, 0)[1]
  while newest and has_room() do
    local behind = redis.call('ZRANGEBYSCORE', every, '-inf', '(' .. newest, 'WITHSCORES', 'LIMIT', 0, 100)
    if #behind == 0 then return true end
    for i = 1, #behind, 2 do
      local visit, at = behind[i], behind[i + 1]
      local signals = redis.call('ZRANGEBYSCORE', log, '(' .. at, '+inf', 'LIMIT', 0, 100)
      for _, signal in ipairs(signals) do
        if not has_room() then break end
        tell(visit, signal, false)
        at = signal
      end
      if #signals == 0 then at = newest end
      looked = looked - 1
      redis.call('ZADD', every, at, visit)
      if not has_room() then return false end
    end
  end
  return not newest
end

-- Offer a signal to the next visit that wants one for itself. False: there was no room to find out whether there is one.
local function offer(signal)
  local tried = redis.call('HGET', board, 't:' .. signal) or '-inf'
  while has_room() do
    local found = redis.call('ZRANGEBYSCORE', one, '(' .. tried, '+inf', 'WITHSCORES', 'LIMIT', 0, 100)
    if #found == 0 then
      redis.call('ZADD', left, signal, signal)
      return true
    end
    for i = 1, #found, 2 do
      local visit = found[i]
      tried, looked = found[i + 1], looked - 1
      local since, is_sure = string.match(redis.call('HGET', board, 'w:' .. visit) or '0 ', '^(%d+) (.*)$')
      if tonumber(since) <= tonumber(signal) then
        redis.call('HSET', board, 't:' .. signal, tried, 'h:' .. signal, visit)
        redis.call('HSET', board, 'o:' .. visit, (redis.call('HGET', board, 'o:' .. visit) or '') .. signal .. ' ')
        if is_sure == 'sure' then redis.call('ZREM', one, visit) end
        tell(visit, signal, true)
        return true
      end
    end
    redis.call('HSET', board, 't:' .. signal, tried)
  end
  return false
end

local function offer_due()
  while has_room() do
    local signal = redis.call('ZRANGE', due, 0, 0)[1]
    if not signal then return true end
    if not offer(signal) then return false end
    redis.call('ZREM', due, signal)
    looked = looked - 1
  end
  return redis.call('EXISTS', due) == 0
end

-- The visit does not take a signal that was offered to it.
local function release(visit, signal)
  if redis.call('HGET', board, 'h:' .. signal) == visit then
    redis.call('HDEL', board, 'h:' .. signal)
    redis.call('ZADD', due, signal, signal)
  end
end

local function count_waiting() return redis.call('ZCARD', every) + redis.call('ZCARD', one) end

local waited = count_waiting()
drop_old()
local reply = {'', 0, 0}
if wish == 'send' then
  local known = redis.call('HGET', board, 'k:' .. who)
  if known then
    reply = {known, 0, 0}
  else
    local signal = text_of(next_number())
    redis.call('HSET', board, 'i:' .. signal, who, 'd:' .. signal, data, 'k:' .. who, signal)
    redis.call('HINCRBY', board, 'bytes', #data)
    redis.call('ZADD', log, signal, signal)
    redis.call('ZADD', due, signal, signal)
    redis.call('XADD', recent, 'MAXLEN', '~', 1000, '*', 'name', name, 'id', who, 'number', signal)
    reply = {signal, 1, 0}
  end
elseif wish == 'await' and kind == 'every' then
  redis.call('ZADD', every, text_of(tonumber(number) - 1), who)
elseif wish == 'await' and (not redis.call('HGET', board, 'w:' .. who) or redis.call('HDEL', board, 'p:' .. who) == 1) then
  redis.call('ZADD', one, text_of(next_number()), who)
  redis.call('HSET', board, 'w:' .. who, number .. ' ' .. kind)
  -- the signals that none of the others wanted are offered again, to this one
  local again = redis.call('ZRANGEBYSCORE', left, number, '+inf', 'LIMIT', 0, kind == 'sure' and 1 or -1)
  for first = 1, #again, 1000 do
    local members = {}
    for i = first, math.min(first + 999, #again) do
      members[#members + 1] = again[i]
      members[#members + 1] = again[i]
    end
    redis.call('ZADD', due, unpack(members))
  end
  if #again > 0 then redis.call('ZREMRANGEBYSCORE', left, number, again[#again]) end
elseif wish == 'await' then  -- its node has lost that it waits: it is told again what is offered to it
  for signal in string.gmatch(redis.call('HGET', board, 'o:' .. who) or '', '%d+') do
    if redis.call('HGET', board, 'h:' .. signal) == who then tell(who, signal, true) end
  end
elseif wish == 'leave' then
  redis.call('ZREM', every, who)
  redis.call('ZREM', one, who)
  for signal in string.gmatch(redis.call('HGET', board, 'o:' .. who) or '', '%d+') do
    if signal ~= number then release(who, signal) end
  end
  redis.call('HDEL', board, 'w:' .. who, 'o:' .. who, 'p:' .. who)
elseif wish == 'decline' then
  release(who, number)
elseif wish == 'pass' and redis.call('HEXISTS', board, 'w:' .. who) == 1 then
  redis.call('ZREM', one, who)
  redis.call('HSET', board, 'p:' .. who, 1)
  release(who, number)
end

-- one effect at a time goes on with what is too much for one call, after those that tell the visits of this page
if wish == 'spread' then redis.call('HDEL', board, 'spreading') end
if redis.call('HEXISTS', board, 'spreading') == 0 then
  local is_spread, is_offered = spread(), offer_due()
  if not (is_spread and is_offered) then
    redis.call('HSET', board, 'spreading', 1)
    redis.call('XADD', effects, '*', 'run', name, 'e', cjson.encode({['do'] = 'spread_signals', name = name}))
  end
end
reply[3] = told

local wait = count_waiting()
local has_waits = wait > 0
if wait ~= waited and redis.call('INCRBY', waiting, wait - waited) <= 0 then redis.call('DEL', waiting) end
for _, key in ipairs({board, log, every, one, due, left}) do
  if has_waits then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, keep_ms) end
end
if has_waits then
  redis.call('ZADD', waits, 'NX', now_ms + LOOK_MS, name)
  redis.call('ZADD', awaited, 'NX', now_ms, name)
else
  redis.call('ZREM', waits, name)
  redis.call('ZREM', awaited, name)
end
return reply
