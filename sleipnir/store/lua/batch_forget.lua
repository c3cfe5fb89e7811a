-- batch_forget: drop index entries of batches that have expired.
--
-- KEYS[1...] all  slp:{p00}:batches (ZSET), ...:batches:open (SET), ...:batches:changed (ZSET), and the HASH of each batch
-- ARGV[1] count   int  how many batches there are
-- ARGV[2...] ids  their ids, in the order of the keys
--
-- Returns how many were dropped; existing batches are kept. Calling twice is safe.
local all = KEYS
local count = tonumber(ARGV[1])
local batches, open, changed = all[1], all[2], all[3]

local dropped = 0
for i = 1, count do
  if redis.call('EXISTS', all[i + 3]) == 0 then
    dropped = dropped + redis.call('ZREM', batches, ARGV[i + 1])
    redis.call('SREM', open, ARGV[i + 1])
    redis.call('ZREM', changed, ARGV[i + 1])
  end
end
return dropped
