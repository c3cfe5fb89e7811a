-- batch_admit: admit the next rows of a batch: adds the effects that start their runs.
--
-- KEYS[1] batch    HASH    slp:{p00}:batch:<id>
-- KEYS[2] rows     LIST    ...:rows
-- KEYS[3] states   STRING  ...:states
-- KEYS[4] effects  STREAM  slp:{p00}:effects
-- KEYS[5] failures HASH    ...:failures
-- KEYS[6] changed  ZSET    slp:{p00}:batches:changed
-- ARGV[1] id       str
-- ARGV[2] rev      int     the revision of the batch on which the decision is based
-- ARGV[3] most     int     the number of rows to admit
-- ARGV[4] now_ms   int
-- ARGV[5] do_      str     the effect that starts a row: start_row, or fork_row
--
-- Returns how many rows were admitted, at most 250 rows, and about half a megabyte of their texts
--         -2 rows were admitted, or the plan was changed, since the caller read the batch; nothing changed
-- Calling twice is safe: the second call finds another rev. Rows that no longer wait, because their runs were retried
-- separately, are skipped.
local batch, rows, states, effects, failures, changed = unpack(KEYS)
local id, rev, most, now_ms, do_ = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local LOOKED_AT, TEXT_BYTES = 250, 2 ^ 19

local found = redis.call('HMGET', batch, 'rev', 'cancelling')
if tonumber(found[1] or 0) ~= rev or found[2] then return -2 end
local admitted, first, bytes = 0, 0, 0
for _ = 1, LOOKED_AT do
  if admitted >= most or bytes >= TEXT_BYTES then break end
  local element = redis.call('LPOP', rows)
  if not element then break end
  local row, text = string.match(element, '^(%d+) ?(.*)$')
  if redis.call('GETRANGE', states, row, row) == 'w' then
    redis.call('SETRANGE', states, row, 'a')
    local effect = '{"do":"' .. do_ .. '","batch":"' .. id .. '","row":' .. row .. ',"text":' .. cjson.encode(text) .. '}'
    if text == '' then
      local version = cjson.decode(redis.call('HGET', failures, row) or '{}').version
      effect = '{"do":"retry_row","batch":"' .. id .. '","row":' .. row .. ',"version":' .. (version or 'null') .. '}'
    end
    redis.call('XADD', effects, '*', 'run', id, 'e', effect)
    admitted = admitted + 1
    bytes = bytes + #text
    if text ~= '' then first = first + 1 end
  end
end
if admitted > 0 then
  redis.call('HSETNX', batch, 'started_ms', now_ms)
  redis.call('HINCRBY', batch, 'waiting', -admitted)
  redis.call('HINCRBY', batch, 'active', admitted)
  if first > 0 then redis.call('HINCRBY', batch, 'admitted', first) end
  redis.call('HINCRBY', batch, 'rev', 1)
  redis.call('ZADD', changed, redis.call('ZINCRBY', changed, 1, ''), id)
end
return admitted
