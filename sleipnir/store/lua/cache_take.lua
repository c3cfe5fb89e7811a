-- cache_take: read the cached result of a key, or take the lease to make it.
--
-- KEYS[1] entry     STRING  slp:{c<node>}:cache:entry:<digest>
-- KEYS[2] lease     STRING  ...:lease:<digest>
-- KEYS[3] use       HASH    ...:use
-- ARGV[1] token     str     identifies the execution of the caller
-- ARGV[2] lease_ms  int     the duration of the lease without another call
-- ARGV[3] fresh     int     1: the caller cannot read the entry, and makes another
--
-- Returns  {2, text}   the cached result
--          {1, epoch, now_ms}  the caller has the lease; cache_put takes its result in this epoch only
--          {0, ms}     another execution has the lease, for so long if it is not renewed; nothing changed
-- Calling twice is safe. A lapsed lease goes to the first caller.
local entry, lease, use = unpack(KEYS)
local token, lease_ms, fresh = unpack(ARGV)

if fresh == '0' then
  local text = redis.call('GET', entry)
  if text then return {2, text} end
end
local holder = redis.call('GET', lease)
if holder and holder ~= token then return {0, redis.call('PTTL', lease)} end
redis.call('SET', lease, token, 'PX', lease_ms)
local time = redis.call('TIME')
return {1, redis.call('HGET', use, 'epoch') or '0', time[1] * 1000 + math.floor(time[2] / 1000)}
