-- webhook_tried: note how a try of a delivery ended.
--
-- KEYS[1] stats       HASH  slp:{webhooks}:<token>:stats
-- KEYS[2] deliveries  HASH  ...:deliveries
-- KEYS[3] lanes       HASH  ...:lanes
-- KEYS[4] due         ZSET  ...:due
-- KEYS[5] log         ZSET  ...:log
-- ARGV[1] lane      str
-- ARGV[2] id        str
-- ARGV[3] until_ms  int   that of the call of webhook_take
-- ARGV[4] record    JSON  webhooks.records.WebhookDelivery; opaque here
-- ARGV[5] now_ms    int
-- ARGV[6] next_ms   str   when it is tried again; '' if it is over
-- ARGV[7] outcome   str   delivered, failed, or '' if it is tried again
--
-- Returns 1 noted
--         0 another sender has taken it since, or it is gone: nothing changed. Calling twice is safe.
local stats, deliveries, lanes, due, log = unpack(KEYS)
local lane, id, until_ms, record, now_ms, next_ms, outcome = unpack(ARGV)

if tonumber(redis.call('ZSCORE', due, lane) or -1) ~= tonumber(until_ms) then return 0 end
local waiting = redis.call('HGET', lanes, lane) or ''
local first, rest = string.match(waiting, '^(%S+) ?(.*)$')
if first ~= id or redis.call('EXISTS', stats) == 0 then return 0 end

if outcome == 'delivered' then
  redis.call('HDEL', stats, 'failing_ms')
else
  redis.call('HSETNX', stats, 'failing_ms', now_ms)
end
redis.call('HSET', deliveries, id, record)
if next_ms ~= '' then
  redis.call('ZADD', due, next_ms, lane)
  return 1
end
redis.call('HINCRBY', stats, outcome, 1)
redis.call('ZADD', log, now_ms, id)
if rest == '' then
  redis.call('HDEL', lanes, lane)
  redis.call('ZREM', due, lane)
else
  redis.call('HSET', lanes, lane, rest)
  redis.call('ZADD', due, now_ms, lane)
end
return 1
