-- batch_change: carry out a person's wish about a batch.
--
-- KEYS[1] batch     HASH    slp:{p00}:batch:<id>
-- KEYS[2] rows      LIST    ...:rows
-- KEYS[3] numbers   HASH    ...:numbers
-- KEYS[4] names     LIST    ...:names
-- KEYS[5] states    STRING  ...:states
-- KEYS[6] failures  HASH    ...:failures
-- KEYS[7] ends      LIST    ...:ends
-- KEYS[8] open      SET     slp:{p00}:batches:open
-- ARGV[1] id        str
-- ARGV[2] wish      str     seal (no more rows are to come), set (fields, nothing else), cancel, or retry (what failed)
-- ARGV[3] now_ms    int
-- ARGV[4] retention_ms  int  how long a batch is kept when its last row is over
-- ARGV[5...] fields  name, text, ... to be set; '' removes one
--
-- Returns  how many rows this concerns: cancelled before they were admitted, or to be retried; else 0
--         -1  there is no such batch
--         -2  it was cancelled, and takes no wish but `cancel`; nothing changed
-- Calling twice is safe.
local batch, rows, numbers, names, states, failures, ends, open = unpack(KEYS)
local id, wish, now_ms, retention_ms = unpack(ARGV, 1, 4)

if redis.call('EXISTS', batch) == 0 then return -1 end
if redis.call('HEXISTS', batch, 'cancelling') == 1 and wish ~= 'cancel' then return -2 end

local count = 0
for i = 5, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', batch, ARGV[i])
  else redis.call('HSET', batch, ARGV[i], ARGV[i + 1]) end
end
if wish == 'seal' then
  redis.call('HSET', batch, 'sealed', 1)
elseif wish == 'cancel' then
  redis.call('HSET', batch, 'cancelling', 1)
  redis.call('DEL', rows)
  local bytes
  bytes, count = string.gsub(redis.call('GET', states) or '', 'w', 'x')
  if count > 0 then
    redis.call('SET', states, bytes, 'KEEPTTL')
    redis.call('HINCRBY', batch, 'waiting', -count)
    redis.call('HINCRBY', batch, 'cancelled', count)
  end
elseif wish == 'retry' then
  local bytes = redis.call('GET', states) or ''
  local at = string.find(bytes, 'f', 1, true)
  while at do
    local failure = cjson.decode(redis.call('HGET', failures, at - 1))
    redis.call('RPUSH', rows, (at - 1) .. ' ' .. (failure.text or ''))
    count = count + 1
    at = string.find(bytes, 'f', at + 1, true)
  end
  if count > 0 then
    redis.call('SET', states, (string.gsub(bytes, 'f', 'w')), 'KEEPTTL')
    redis.call('HINCRBY', batch, 'waiting', count)
    redis.call('HINCRBY', batch, 'failed', -count)
    redis.call('HDEL', batch, 'ended_ms')
    redis.call('SADD', open, id)
    for _, key in ipairs({batch, rows, numbers, names, states, failures, ends}) do redis.call('PERSIST', key) end
  end
end

local at = redis.call('HMGET', batch, 'sealed', 'cancelling', 'waiting', 'active', 'ended_ms')
if (at[1] or at[2]) and at[3] == '0' and at[4] == '0' and not at[5] then
  redis.call('HSET', batch, 'ended_ms', now_ms)
  redis.call('SREM', open, id)
  for _, key in ipairs({batch, rows, numbers, names, states, failures, ends}) do
    redis.call('PEXPIRE', key, retention_ms)
  end
end
return count
