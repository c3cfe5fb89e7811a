-- limit_take: grant one call permits of all its limits at once, or a place in line and a time to come back.
--
-- KEYS[1...] limits      window HASH, held ZSET, line ZSET, due ZSET, late ZSET of each limit (store/keys.py); then
--                        changes HASH, bounds that were changed at run time
-- ARGV[1] holder       str  who holds the permit: run/seq/attempt/turn
-- ARGV[2] caller       str  who stands in line: the same for all attempts
-- ARGV[3] tokens       int  the estimated tokens of the call
-- ARGV[4] lease_ms     int  the lifetime of a permit that is not renewed
-- ARGV[5] slice_ms     int  calls are counted per slice of time
-- ARGV[6] slices       int  how many slices after its own a call counts: a window, and the time to send it
-- ARGV[7] patience_ms  int  a place in line blocks others until this long after its time
-- ARGV[8] now_ms       int  0: Redis' clock
-- ARGV[9...] bounds    pattern, requests, tokens and calls at once of each limit; 0: no bound
--
-- Returns  {1}  granted, now or by an earlier call of this holder. Calling twice counts once.
--          {0, retry_at_ms, limit, cause, ahead, used, bound, holder, ...}  refused. `limit`, counted from 0, is the limit that
--                admits the call last, because of `cause`: requests, tokens, parallel or cooling; `used` is the used
--                amount of that, `bound` its bound; `ahead` callers come first; up to three holders of permits. Calling twice keeps the
--                place.
--
-- The bounds hold in any window: of the calls in one, the last was granted because its own slice and the `slices` before
-- it, and so all the calls of that window, were within the bound together with it.
local limits = KEYS
local holder, caller, tokens, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local slice_ms, slices, patience_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local now_ms, bounds_at = tonumber(ARGV[8]), 9

local KEEP_MS = 7200000    -- idle keys die; twice as long as a provider can make a limit wait
local MOST_AT_ONCE = 500   -- lapsed permits or late callers that one call tidies away
local MOST_LATE = 10000    -- late callers whose place is remembered
local HASTE = 0.75         -- of the time between two places in line; at 1, no delay could ever be made up for
local SHORTEST_WAIT_MS = 50
local LONGEST_LOOK_MS = 5000  -- the first in line comes at least this often: how long calls take is a guess

if now_ms == 0 then
  local time = redis.call('TIME')
  now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
local slice_now, span_ms = math.floor(now_ms / slice_ms), (slices + 1) * slice_ms

-- After the clock was set back by more than a window, all counts are invalid. Only the permits are still held, for no
-- longer than a lease.
local function forget(limit)
  for _, key in ipairs({limit.window, limit.line, limit.due, limit.late}) do redis.call('DEL', key) end
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', limit.held, now_ms + lease_ms, '+inf')) do
    redis.call('ZADD', limit.held, now_ms + lease_ms, name)
  end
end

-- Update the totals of a limit. Time never goes back: a call with an older time counts as now.
local function count(limit)
  local known = redis.call('HMGET', limit.window, 'slice', 'requests', 'tokens', 'cool_ms', 'took_ms', 'ticket')
  local last = tonumber(known[1]) or slice_now
  limit.took_ms, limit.ticket = tonumber(known[5]) or 1000, tonumber(known[6]) or 0
  if last > slice_now + slices then
    forget(limit)
    known, last = {}, slice_now
  end
  limit.slice = math.max(last, slice_now)
  limit.requests, limit.tokens = tonumber(known[2]) or 0, tonumber(known[3]) or 0
  limit.cool_ms = tonumber(known[4]) or 0

  local gone = {}
  for slice = last - slices, math.min(limit.slice - slices - 1, last) do
    gone[#gone + 1] = 'r' .. slice
    gone[#gone + 1] = 't' .. slice
  end
  if #gone == 0 then return end
  local counts = redis.call('HMGET', limit.window, unpack(gone))
  for i = 1, #counts, 2 do
    limit.requests = limit.requests - (tonumber(counts[i]) or 0)
    limit.tokens = limit.tokens - (tonumber(counts[i + 1]) or 0)
  end
  redis.call('HDEL', limit.window, unpack(gone))
  redis.call('HSET', limit.window, 'slice', limit.slice, 'requests', limit.requests, 'tokens', limit.tokens)
end

-- Free the permits whose lease has lapsed. Callers that do not come back in time no longer block those behind them.
local function tidy(limit)
  local lapsed = redis.call('ZRANGEBYSCORE', limit.held, '-inf', now_ms, 'LIMIT', 0, MOST_AT_ONCE)
  for _, name in ipairs(lapsed) do
    redis.call('ZREM', limit.held, name)
    redis.call('HDEL', limit.window, 'h' .. name)
  end
  local late = redis.call('ZRANGEBYSCORE', limit.due, '-inf', now_ms - patience_ms, 'LIMIT', 0, MOST_AT_ONCE)
  for _, name in ipairs(late) do
    redis.call('ZADD', limit.late, redis.call('ZSCORE', limit.line, name) or 0, name)
    redis.call('ZREM', limit.line, name)
    redis.call('ZREM', limit.due, name)
  end
  if #late > 0 then
    redis.call('ZREMRANGEBYRANK', limit.late, 0, -MOST_LATE - 1)
    redis.call('PEXPIRE', limit.late, KEEP_MS)
  end
end

-- Where the caller stands: who comes first, and the tokens that they may use. A ticket is the sum of the tokens of all
-- before it, so the way to the first in line is what those between ask for.
local function find_place(limit)
  limit.place = tonumber(redis.call('ZSCORE', limit.line, caller) or redis.call('ZSCORE', limit.late, caller))
  local first = redis.call('ZRANGE', limit.line, 0, 0, 'WITHSCORES')
  if limit.place then
    limit.ahead = redis.call('ZCOUNT', limit.line, '-inf', string.format('(%.0f', limit.place))
  else
    limit.ahead = redis.call('ZCARD', limit.line)
  end
  limit.tokens_ahead = limit.ahead > 0 and (limit.place or limit.ticket) - tonumber(first[2]) or 0
  -- A call that alone exceeds the bound is granted when the window is empty; the provider decides.
  limit.need = limit.most_tokens > 0 and math.min(tokens, limit.most_tokens) or tokens
end

-- The bounds of limits.yaml, or those that people have set in their place.
local function set_bounds(limit, at)
  limit.most_requests, limit.most_tokens = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  limit.most_parallel = tonumber(ARGV[at + 3])
  local changed = redis.call('HGET', limits[#limits], ARGV[at])
  if not changed then return end
  local is_read, change = pcall(cjson.decode, changed)
  if not is_read then return end
  limit.most_requests = tonumber(change.requests_per_minute) or limit.most_requests
  limit.most_tokens = tonumber(change.tokens_per_minute) or limit.most_tokens
  limit.most_parallel = tonumber(change.max_parallel) or limit.most_parallel
end

-- When `need` more stay within `bound`, `total` being counted now: slices leave, the oldest first, and what does not fit
-- one window fits a later one.
local function fits_at(limit, kind, total, bound, need)
  local rounds = math.max(0, math.ceil(need / bound) - 1)
  local room = bound - (need - rounds * bound)
  local at_ms = now_ms
  if total > room then
    local fields = {}
    for slice = limit.slice - slices, limit.slice do fields[#fields + 1] = kind .. slice end
    local counts, leaving = redis.call('HMGET', limit.window, unpack(fields)), 0
    while total > room and leaving <= slices do
      leaving = leaving + 1
      total = total - (tonumber(counts[leaving]) or 0)
    end
    at_ms = (limit.slice + leaving) * slice_ms
  end
  return at_ms + rounds * span_ms
end

-- When the limit lets the call pass, at the earliest, why not now, and how much is taken; nil: it may pass.
local function refusal(limit)
  local at_ms, cause, used = 0, nil, 0
  local function wait(for_cause, until_ms, taken)
    if until_ms > at_ms then at_ms, cause, used = until_ms, for_cause, taken end
  end
  if limit.most_requests > 0 and limit.requests + limit.ahead + 1 > limit.most_requests then
    wait('requests', fits_at(limit, 'r', limit.requests, limit.most_requests, limit.ahead + 1), limit.requests)
  end
  if limit.most_tokens > 0 and limit.tokens + limit.tokens_ahead + limit.need > limit.most_tokens then
    local need = limit.tokens_ahead + limit.need
    wait('tokens', fits_at(limit, 't', limit.tokens, limit.most_tokens, need), limit.tokens)
  end
  if limit.most_parallel > 0 then
    local held = redis.call('ZCARD', limit.held)
    local over = held + limit.ahead + 1 - limit.most_parallel
    if over > 0 then
      local each_ms = limit.took_ms / limit.most_parallel
      local wait_ms = HASTE * (math.min(each_ms, LONGEST_LOOK_MS) + (over - 1) * each_ms)
      wait('parallel', math.ceil(now_ms + math.max(SHORTEST_WAIT_MS, wait_ms)), held)
    end
  end
  if limit.cool_ms > now_ms then wait('cooling', limit.cool_ms, 0) end
  return at_ms, cause, used
end

-- The time between two places in line, so that they do not all come at once after a pause.
local function pace_ms(limit)
  local pace = 0
  if limit.most_requests > 0 then pace = span_ms / limit.most_requests end
  if limit.most_tokens > 0 then pace = math.max(pace, span_ms * limit.need / limit.most_tokens) end
  if limit.most_parallel > 0 then pace = math.max(pace, limit.took_ms / limit.most_parallel) end
  return HASTE * pace
end

local function stand_in_line(limit, at_ms)
  if limit.ahead > 0 then
    local before = redis.call('ZRANGE', limit.line, limit.ahead - 1, limit.ahead - 1)[1]
    local before_ms = redis.call('ZSCORE', limit.due, before) or now_ms
    at_ms = math.max(at_ms, math.ceil(before_ms + pace_ms(limit)))
  end
  if not limit.place then
    limit.place = limit.ticket
    redis.call('HSET', limit.window, 'ticket', limit.ticket + math.max(1, limit.need))
  end
  redis.call('ZADD', limit.line, limit.place, caller)
  redis.call('ZADD', limit.due, at_ms, caller)
  redis.call('ZREM', limit.late, caller)
  for _, key in ipairs({limit.window, limit.line, limit.due}) do redis.call('PEXPIRE', key, KEEP_MS) end
  return at_ms
end

local function grant(limit)
  local slice = limit.slice
  redis.call('HSET', limit.window, 'slice', slice, 'requests', limit.requests + 1, 'tokens', limit.tokens + tokens,
    'h' .. holder, slice .. ':' .. tokens .. ':' .. string.format('%.0f', now_ms))
  redis.call('HINCRBY', limit.window, 'r' .. slice, 1)
  if tokens > 0 then redis.call('HINCRBY', limit.window, 't' .. slice, tokens) end
  redis.call('ZADD', limit.held, now_ms + lease_ms, holder)
  for _, key in ipairs({limit.line, limit.due, limit.late}) do redis.call('ZREM', key, caller) end
  for _, key in ipairs({limit.window, limit.held}) do redis.call('PEXPIRE', key, KEEP_MS) end
end

local function bound_of(limit, cause)
  return ({requests = limit.most_requests, tokens = limit.most_tokens, parallel = limit.most_parallel})[cause] or 0
end

local asked = {}
for number = 1, (#limits - 1) / 5 do
  local key = 5 * number - 4
  local limit = {
    number = number - 1, window = limits[key], held = limits[key + 1], line = limits[key + 2], due = limits[key + 3],
    late = limits[key + 4],
  }
  set_bounds(limit, bounds_at + 4 * (number - 1))
  count(limit)
  tidy(limit)
  -- A held permit is not requested again: this makes repeated calls safe.
  if not redis.call('ZSCORE', limit.held, holder) then
    find_place(limit)
    asked[#asked + 1] = limit
  end
end

local reply = {1}
for _, limit in ipairs(asked) do
  local at_ms, cause, used = refusal(limit)
  if cause then
    at_ms = stand_in_line(limit, at_ms)
    if reply[1] == 1 or at_ms > reply[2] then
      reply = {0, at_ms, limit.number, cause, limit.ahead, used, bound_of(limit, cause), unpack(redis.call('ZRANGE', limit.held, 0, 2))}
    end
  end
end
if reply[1] == 1 then
  for _, limit in ipairs(asked) do grant(limit) end
end
return reply
