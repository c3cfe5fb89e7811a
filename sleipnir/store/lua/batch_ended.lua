-- batch_ended: record the end of a row.
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
-- ARGV[1] id        str
-- ARGV[2] row       int
-- ARGV[3] status    str     its byte: c, f or x
-- ARGV[4] version   int     of the run, which grows with each of its ends
-- ARGV[5] usage     JSON    numbers by field of the batch: the total usage of the run
-- ARGV[6] error     str     why the row cannot become a run, or its run cannot continue; '' if it has ended
-- ARGV[7] text      str     the row, if it cannot become a run; opaque here
-- ARGV[8] retention_ms  int  how long a batch is kept after its last row is over
--
-- Returns  1  recorded
--          0  already recorded, or there is no such row; nothing changed. Calling twice is safe.
-- shared: webhooks
-- shared: batches
local batch, rows, numbers, names, states, failures, ends, open, changed = unpack(KEYS)
local id, row, status, version, usage, error_, text, retention_ms = unpack(ARGV)

local COUNT_OF = {w = 'waiting', a = 'active', c = 'completed', f = 'failed', x = 'cancelled'}
local before = redis.call('GETRANGE', states, row, row)
if before == '' or before == 'c' then return 0 end
local known = redis.call('HGET', failures, row)
local last = known and cjson.decode(known) or {version = -1, usage = {}}
if error_ == '' and tonumber(version) <= last.version then return 0 end
if error_ ~= '' and before ~= 'a' then return 0 end

local used = error_ == '' and cjson.decode(usage) or last.usage
for field, amount in pairs(used) do
  local more = amount - (last.usage[field] or 0)
  if more ~= 0 then redis.call('HINCRBYFLOAT', batch, field, more) end
end
if status == 'c' then
  redis.call('HDEL', failures, row)
else
  local failure = {version = tonumber(version), usage = used}
  if error_ ~= '' then failure = {version = last.version, usage = last.usage, error = error_} end
  if text ~= '' then failure.text = text end
  redis.call('HSET', failures, row, cjson.encode(failure))
end
redis.call('SETRANGE', states, row, status)
redis.call('HINCRBY', batch, COUNT_OF[before], -1)
redis.call('HINCRBY', batch, COUNT_OF[status], 1)
redis.call('RPUSH', ends, row)

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end_if_over({batch, rows, numbers, names, states, failures, ends}, open, id, now_ms, retention_ms)
redis.call('ZADD', changed, redis.call('ZINCRBY', changed, 1, ''), id)
return 1
