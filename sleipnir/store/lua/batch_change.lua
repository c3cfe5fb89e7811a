-- batch_change: apply a person's request to a batch. batch_work does the work on its rows.
--
-- KEYS[1] batch     HASH    slp:{p00}:batch:<id>
-- KEYS[2] rows      LIST    ...:rows
-- KEYS[3] numbers   HASH    ...:numbers
-- KEYS[4] names     LIST    ...:names
-- KEYS[5] states    STRING  ...:states
-- KEYS[6] failures  HASH    ...:failures
-- KEYS[7] ends      LIST    ...:ends
-- KEYS[8] open      SET     slp:{p00}:batches:open
-- KEYS[9] changed   ZSET    slp:{p00}:batches:changed
-- KEYS[10] audit    STREAM  slp:{p00}:audit
-- ARGV[1] id        str
-- ARGV[2] wish      str     seal (no more rows will be added), set (only fields), or cancel
-- ARGV[3] now_ms    int
-- ARGV[4] retention_ms  int  how long a batch is kept after its last row is over
-- ARGV[5] entry     JSON    of the audit, access/audit.py; '' for none. It is written if a field changes
-- ARGV[6] keep_ms   int     how long entries are kept
-- ARGV[7...] fields  name, text, ... to set; '' removes one
--
-- Returns  0  done; after `cancel` batch_work cancels the rows that wait
--         -1  there is no such batch
--         -2  it was cancelled, and accepts only `cancel`; nothing changed
--         -3  `cancel`: all of its rows are over; nothing changed
-- Calling twice is safe.
-- shared: audit
-- shared: webhooks
-- shared: batches
local batch, rows, numbers, names, states, failures, ends, open, changed, audit = unpack(KEYS)
local id, wish, now_ms, retention_ms, entry, keep_ms = unpack(ARGV, 1, 6)
local FIRST, is_new = 7, false  -- of the fields

if redis.call('EXISTS', batch) == 0 then return -1 end
local before = redis.call('HMGET', batch, 'cancelling', 'ended_ms', 'waiting')
if before[1] and wish ~= 'cancel' then return -2 end
if before[2] and wish == 'cancel' then return -3 end

for i = FIRST, #ARGV, 2 do
  is_new = is_new or (redis.call('HGET', batch, ARGV[i]) or '') ~= ARGV[i + 1]
  if ARGV[i + 1] == '' then redis.call('HDEL', batch, ARGV[i])
  else redis.call('HSET', batch, ARGV[i], ARGV[i + 1]) end
end
if is_new and entry ~= '' then add_to_audit(audit, entry, tonumber(keep_ms)) end
if wish == 'seal' then
  redis.call('HSET', batch, 'sealed', 1)
else
  redis.call('HINCRBY', batch, 'rev', 1)
end
if wish == 'cancel' and not before[1] then
  redis.call('HSET', batch, 'cancelling', 1)
  redis.call('HDEL', batch, 'retry', 'retry_at', 'retry_rows')
  redis.call('UNLINK', rows)
  if before[3] ~= '0' then redis.call('HSET', batch, 'cancel_at', 0) end
end

end_if_over({batch, rows, numbers, names, states, failures, ends}, open, id, now_ms, retention_ms)
redis.call('ZADD', changed, redis.call('ZINCRBY', changed, 1, ''), id)
return 0
