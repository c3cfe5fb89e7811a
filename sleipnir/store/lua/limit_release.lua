-- limit_release: release a permit, and replace the estimated tokens by the used ones.
--
-- KEYS[1] window  HASH  slp:{limits}:limit:<limit>:window
-- KEYS[2] held    ZSET  slp:{limits}:limit:<limit>:held
-- ARGV[1] holder  str
-- ARGV[2] tokens  int   -1: the estimate stays
-- ARGV[3] now_ms  int   0: Redis' clock
--
-- Returns  1  released
--          0  not held: released before, or its lease has lapsed; nothing changes. Calling twice is safe.
local window, held = KEYS[1], KEYS[2]
local holder, tokens, now_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local grant = redis.call('HGET', window, 'h' .. holder)
if grant then
  if now_ms == 0 then
    local time = redis.call('TIME')
    now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  local slice, estimate, granted_ms = string.match(grant, '^(%d+):(%d+):(%d+)$')
  if tokens >= 0 and redis.call('HEXISTS', window, 'r' .. slice) == 1 then  -- else it has left the window
    redis.call('HINCRBY', window, 't' .. slice, tokens - estimate)
    redis.call('HINCRBY', window, 'tokens', tokens - estimate)
  end
  -- The moving average of a call's duration: a caller that waits for one of N permits comes back when one may be free. At
  -- most a minute, so that after a few long calls no caller waits much longer than the next calls take.
  local took_ms = math.max(0, math.min(now_ms - granted_ms, 60000))
  local mean_ms = tonumber(redis.call('HGET', window, 'took_ms')) or took_ms
  redis.call('HSET', window, 'took_ms', math.floor(mean_ms + (took_ms - mean_ms) / 8))
  redis.call('HDEL', window, 'h' .. holder)
end
return redis.call('ZREM', held, holder)
