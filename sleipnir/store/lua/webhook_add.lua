-- webhook_add: queue a delivery of a webhook, after those about the same run or batch.
--
-- KEYS[1] stats       HASH  slp:{webhooks}:<token>:stats
-- KEYS[2] deliveries  HASH  ...:deliveries
-- KEYS[3] lanes       HASH  ...:lanes
-- KEYS[4] due         ZSET  ...:due
-- KEYS[5] log         ZSET  ...:log
-- ARGV[1] id      str   of the delivery
-- ARGV[2] lane    str   the run or batch that it is about
-- ARGV[3] record  JSON  webhooks.records.WebhookDelivery; opaque here
-- ARGV[4] now_ms  int
-- ARGV[5] most    int   deliveries that may wait
-- ARGV[6] again   int   1: a known delivery that is over waits again; 0: a new one is added
--
-- Returns  1  it waits
--          0  nothing changed: it is known or waits already; `again`, and it is not known
--         -1  too many wait; counted as lost
--         -2  there is no such webhook any more
-- Calling twice is safe.
local stats, deliveries, lanes, due, log = unpack(KEYS)
local id, lane, record, now_ms, most, again = unpack(ARGV)

if redis.call('EXISTS', stats) == 0 then return -2 end
local waiting = redis.call('HGET', lanes, lane)
if waiting and string.find(' ' .. waiting .. ' ', ' ' .. id .. ' ', 1, true) then return 0 end
if redis.call('HEXISTS', deliveries, id) ~= tonumber(again) then return 0 end
if redis.call('HLEN', deliveries) - redis.call('ZCARD', log) >= tonumber(most) then
  if again == '0' then redis.call('HINCRBY', stats, 'lost', 1) end
  return -1
end
redis.call('HSET', deliveries, id, record)
redis.call('ZREM', log, id)
redis.call('HSET', lanes, lane, waiting and waiting .. ' ' .. id or id)
if not waiting then redis.call('ZADD', due, now_ms, lane) end
return 1
