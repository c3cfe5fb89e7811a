-- webhook_take: take deliveries of a webhook that are due, and forget old ones that are over.
--
-- KEYS[1] deliveries  HASH  slp:{webhooks}:<token>:deliveries
-- KEYS[2] lanes       HASH  ...:lanes
-- KEYS[3] due         ZSET  ...:due
-- KEYS[4] log         ZSET  ...:log
-- ARGV[1] now_ms    int
-- ARGV[2] until_ms  int   until then no other sender takes them
-- ARGV[3] most      int   deliveries to take; 0: only forget
-- ARGV[4] oldest_ms int   deliveries that were over before are forgotten
-- ARGV[5] kept      int   so many of those that are over are kept
--
-- Returns {lane, id, record, ...}: the first delivery of each lane. Calling twice takes the next ones: what the first call
-- took is due again at `until_ms`.
local deliveries, lanes, due, log = unpack(KEYS)
local now_ms, until_ms, most, oldest_ms, kept = unpack(ARGV)
local FORGOTTEN = 200  -- in one call

local function forget(ids)
  for _, id in ipairs(ids) do
    redis.call('HDEL', deliveries, id)
    redis.call('ZREM', log, id)
  end
end
forget(redis.call('ZRANGEBYSCORE', log, '-inf', '(' .. oldest_ms, 'LIMIT', 0, FORGOTTEN))
local extra = redis.call('ZCARD', log) - tonumber(kept)
if extra > 0 then forget(redis.call('ZRANGE', log, 0, math.min(extra, FORGOTTEN) - 1)) end

local taken = {}
if most == '0' then return taken end
for _, lane in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now_ms, 'LIMIT', 0, most)) do
  local waiting = redis.call('HGET', lanes, lane) or ''
  local id, rest = string.match(waiting, '^(%S+) ?(.*)$')
  local record = id and redis.call('HGET', deliveries, id)
  if record then
    redis.call('ZADD', due, until_ms, lane)
    taken[#taken + 1] = lane
    taken[#taken + 1] = id
    taken[#taken + 1] = record
  elseif (rest or '') ~= '' then  -- a backup has lost the first one
    redis.call('HSET', lanes, lane, rest)
  else
    redis.call('HDEL', lanes, lane)
    redis.call('ZREM', due, lane)
  end
end
return taken
