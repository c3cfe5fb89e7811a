-- batch_work: do the next piece of work on many rows of a batch: cancel waiting ones, or let failed ones wait again.
-- The progress is stored in the batch, so any caller can continue it. A piece is 250 failed rows, 50,000 checked rows, or
-- about half a megabyte of texts.
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
-- ARGV[2] request   str     the id of a request to retry all failed rows; '' continues the work in progress
-- ARGV[3] now_ms    int
-- ARGV[4] retention_ms  int  how long a batch is kept after its last row is over
--
-- Returns {left, rows}
--         left   1  there is more to do: call again
--                0  done; `rows` is how many rows wait again because of this request (0 for '')
--               -1  there is no such batch
--               -2  it was cancelled, and no row is retried; nothing changed
-- Calling twice is safe: it does the next piece, and a finished request (one of the last 8) is not repeated. While
-- another request is in progress, a piece of that one is done.
-- shared: webhooks
-- shared: batches
local batch, rows, numbers, names, states, failures, ends, open, changed = unpack(KEYS)
local id, request, now_ms, retention_ms = unpack(ARGV)
local ROWS, LOOKED_AT, TEXT_BYTES, REMEMBERED = 250, 50000, 2 ^ 19, 8

local found = redis.call(
  'HMGET', batch, 'spec', 'cancelling', 'cancel_at', 'retry', 'retry_at', 'retry_rows', 'retried', 'failed', 'waiting'
)
local cancelling, current, retried = found[2], found[4], found[7] or ''
if not found[1] then return {-1, 0} end
if cancelling and request ~= '' then return {-2, 0} end

local function note_whether_over()
  end_if_over({batch, rows, numbers, names, states, failures, ends}, open, id, now_ms, retention_ms)
  redis.call('ZADD', changed, redis.call('ZINCRBY', changed, 1, ''), id)
end

if cancelling then
  local first = tonumber(found[3])
  if not first then return {0, 0} end
  local bytes, count = string.gsub(redis.call('GETRANGE', states, first, first + LOOKED_AT - 1), 'w', 'x')
  if count > 0 then
    redis.call('SETRANGE', states, first, bytes)
    redis.call('HINCRBY', batch, 'waiting', -count)
    redis.call('HINCRBY', batch, 'cancelled', count)
  end
  local left = #bytes == LOOKED_AT and count < tonumber(found[9])
  if left then redis.call('HSET', batch, 'cancel_at', first + LOOKED_AT) else redis.call('HDEL', batch, 'cancel_at') end
  note_whether_over()
  return {left and 1 or 0, 0}
end

if request ~= '' then
  local count = string.match(',' .. retried, ',' .. request .. ' (%d+)')
  if count then return {0, tonumber(count)} end
end
if not current then
  if request == '' or tonumber(found[8] or 0) == 0 then return {0, 0} end
  current = request
  redis.call('HSET', batch, 'retry', current, 'retry_at', 0, 'retry_rows', 0)
  redis.call('HDEL', batch, 'ended_ms')
  redis.call('SADD', open, id)
  for _, key in ipairs({batch, rows, numbers, names, states, failures, ends}) do redis.call('PERSIST', key) end
end

local first = tonumber(redis.call('HGET', batch, 'retry_at'))
local bytes = redis.call('GETRANGE', states, first, first + LOOKED_AT - 1)
local until_, count, text_bytes = #bytes, 0, 0
local at = string.find(bytes, 'f', 1, true)
while at do
  local row = first + at - 1
  local failure = redis.call('HGET', failures, row)
  local text = failure and cjson.decode(failure).text or ''
  redis.call('RPUSH', rows, row .. ' ' .. text)
  count, text_bytes = count + 1, text_bytes + #text
  if count == ROWS or text_bytes >= TEXT_BYTES then
    until_ = at
    break
  end
  at = string.find(bytes, 'f', at + 1, true)
end
if count > 0 then
  redis.call('SETRANGE', states, first, (string.gsub(string.sub(bytes, 1, until_), 'f', 'w')))
  redis.call('HINCRBY', batch, 'waiting', count)
  redis.call('HINCRBY', batch, 'failed', -count)
end
local so_far = redis.call('HINCRBY', batch, 'retry_rows', count)
local left = until_ < #bytes or #bytes == LOOKED_AT
if left then
  redis.call('HSET', batch, 'retry_at', first + until_)
else
  redis.call('HDEL', batch, 'retry', 'retry_at', 'retry_rows')
  local kept = {current .. ' ' .. so_far}
  for each in string.gmatch(retried, '%w+ %d+') do
    if #kept < REMEMBERED then kept[#kept + 1] = each end
  end
  redis.call('HSET', batch, 'retried', table.concat(kept, ','))
end
note_whether_over()
if current ~= request then return {request ~= '' and 1 or left and 1 or 0, 0} end
return {left and 1 or 0, so_far}
