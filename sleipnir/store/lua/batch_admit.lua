-- batch_admit: let the next rows of a batch become runs: the owner of the partition owes their start from now on.
--
-- KEYS[1] batch    HASH    slp:{p00}:batch:<id>
-- KEYS[2] rows     LIST    ...:rows
-- KEYS[3] states   STRING  ...:states
-- KEYS[4] owner    HASH    slp:{p00}:owner
-- KEYS[5] effects  STREAM  slp:{p00}:effects
-- KEYS[6] failures HASH    ...:failures
-- ARGV[1] id       str
-- ARGV[2] epoch    int     of the caller's ownership
-- ARGV[3] most     int     so many rows
-- ARGV[4] now_ms   int
--
-- Returns how many rows were admitted; -1 when the epoch does not own this partition any more. Rows that do not wait
-- any more, as their runs were retried by themselves, are passed over.
local batch, rows, states, owner, effects, failures = unpack(KEYS)
local id, epoch, most, now_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

if tonumber(redis.call('HGET', owner, 'epoch')) ~= epoch then return -1 end
local admitted, first = 0, 0
while admitted < most do
  local element = redis.call('LPOP', rows)
  if not element then break end
  local row, text = string.match(element, '^(%d+) ?(.*)$')
  if redis.call('GETRANGE', states, row, row) == 'w' then
    redis.call('SETRANGE', states, row, 'a')
    local effect = '{"do":"start_row","batch":"' .. id .. '","row":' .. row .. ',"text":' .. cjson.encode(text) .. '}'
    if text == '' then
      local version = cjson.decode(redis.call('HGET', failures, row) or '{}').version
      effect = '{"do":"retry_row","batch":"' .. id .. '","row":' .. row .. ',"version":' .. (version or 'null') .. '}'
    end
    redis.call('XADD', effects, '*', 'run', id, 'e', effect)
    admitted = admitted + 1
    if text ~= '' then first = first + 1 end
  end
end
if admitted > 0 then
  redis.call('HSETNX', batch, 'started_ms', now_ms)
  redis.call('HINCRBY', batch, 'waiting', -admitted)
  redis.call('HINCRBY', batch, 'active', admitted)
  if first > 0 then redis.call('HINCRBY', batch, 'admitted', first) end
end
return admitted
