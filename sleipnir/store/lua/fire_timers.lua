-- fire_timers: turn the due timers of one partition into inbox entries.
--
-- KEYS[1] timers  ZSET    slp:{p07}:timers
-- KEYS[2] inbox   STREAM  slp:{p07}:inbox
-- ARGV[1] limit   int
--
-- Returns how many fired or were removed because they name no run. A timer fires once, regardless of the callers.
local timers, inbox, limit = KEYS[1], KEYS[2], ARGV[1]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', timers, '-inf', now_ms, 'LIMIT', 0, limit)
for _, name in ipairs(due) do
  local run_id, timer = string.match(name, '^([^/]+)/(.+)$')
  if run_id then redis.call('XADD', inbox, '*', 't', 'timer', 'run', run_id, 'name', timer) end
  redis.call('ZREM', timers, name)
end
return #due
