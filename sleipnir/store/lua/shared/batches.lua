-- batches: the end of a batch. A script with the line `-- shared: batches` has this text there, after that of webhooks.

-- End a batch whose rows are all over, unless it has ended, or rows may still be added or retried. `keys` are those of the
-- batch itself, which live for `retention_ms` from now on; the first is its hash.
local function end_if_over(keys, open, id, now_ms, retention_ms)
  local batch = keys[1]
  local at = redis.call('HMGET', batch, 'sealed', 'cancelling', 'waiting', 'active', 'ended_ms', 'retry')
  if not ((at[1] or at[2]) and at[3] == '0' and at[4] == '0' and not at[5] and not at[6]) then return end
  redis.call('HSET', batch, 'ended_ms', now_ms)
  redis.call('SREM', open, id)
  for _, key in ipairs(keys) do redis.call('PEXPIRE', key, retention_ms) end
  note_occasion(batch, 'batch_done', id, function()
    local names = {'total', 'completed', 'failed', 'cancelled', 'cost_usd'}
    local found, fields = redis.call('HMGET', batch, unpack(names)), {}
    for i, name in ipairs(names) do
      fields[#fields + 1] = name
      fields[#fields + 1] = found[i] or '0'
    end
    return fields
  end)
end
