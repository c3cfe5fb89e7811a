-- batch_add: add rows to a batch; the first call creates it. A row that it already has is not added again.
--
-- KEYS[1] batch     HASH    slp:{p00}:batch:<id>
-- KEYS[2] rows      LIST    ...:rows
-- KEYS[3] numbers   HASH    ...:numbers
-- KEYS[4] names     LIST    ...:names
-- KEYS[5] states    STRING  ...:states
-- KEYS[6] failures  HASH    ...:failures
-- KEYS[7] ends      LIST    ...:ends
-- KEYS[8] batches   ZSET    slp:{p00}:batches; those of namespaces are named after it (store/namespaced.py)
-- KEYS[9] open      SET     slp:{p00}:batches:open
-- KEYS[10] changed  ZSET    slp:{p00}:batches:changed
-- ARGV[1] id        str
-- ARGV[2] now_ms    int
-- ARGV[3] fields    JSON    [name, text, ...] of the batch, for its creation
-- ARGV[4] namespace str
-- ARGV[5...] added  per row its key, its digest, and the row as JSON, which is opaque here
--
-- Returns {rows added, rows known already, place in the call of a row whose key has other contents, ...}
--         {-1} the batch was cancelled; nothing changed. Calling twice is safe.
--         {-2} it is a batch of another namespace; nothing changed
local batch, rows, numbers, names, states, failures, ends, batches, open, changed = unpack(KEYS)
local id, now_ms, fields, namespace = unpack(ARGV, 1, 4)

if redis.call('EXISTS', batch) == 0 then
  redis.call('HSET', batch, 'created_ms', now_ms, 'total', 0, 'waiting', 0, 'active', 0, unpack(cjson.decode(fields)))
  redis.call('ZADD', batches, now_ms, id)
  redis.call('SADD', batches .. ':of', namespace)
  redis.call('ZADD', batches .. ':of:' .. namespace, now_ms, id)
else
  local is_read, spec = pcall(cjson.decode, redis.call('HGET', batch, 'spec'))
  if is_read and (spec.namespace or 'default') ~= namespace then return {-2} end
  if redis.call('HEXISTS', batch, 'cancelling') == 1 then return {-1} end
end

local total = tonumber(redis.call('HGET', batch, 'total'))
local result, added = {0, 0}, 0
for i = 5, #ARGV, 3 do
  local key, digest = ARGV[i], ARGV[i + 1]
  local known = redis.call('HGET', numbers, key)
  if not known then
    local row = total + added
    redis.call('HSET', numbers, key, row .. ' ' .. digest)
    redis.call('RPUSH', rows, row .. ' ' .. ARGV[i + 2])
    redis.call('RPUSH', names, key)
    added = added + 1
  elseif string.match(known, ' (.*)$') == digest then
    result[2] = result[2] + 1
  else
    result[#result + 1] = (i - 5) / 3
  end
end
result[1] = added

if added > 0 then
  redis.call('APPEND', states, string.rep('w', added))
  redis.call('HINCRBY', batch, 'total', added)
  redis.call('HINCRBY', batch, 'waiting', added)
  redis.call('HDEL', batch, 'sealed', 'ended_ms')
  for _, key in ipairs({batch, rows, numbers, names, states, failures, ends}) do redis.call('PERSIST', key) end
end
if redis.call('HEXISTS', batch, 'ended_ms') == 0 then redis.call('SADD', open, id) end
redis.call('ZADD', changed, redis.call('ZINCRBY', changed, 1, ''), id)
return result
