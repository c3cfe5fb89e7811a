-- audit: entries of an audit. A script with the line `-- shared: audit` has this text there.

local MOST_ENTRIES = 100000  -- as in access/audit.py

-- Add an entry; those that are older than `keep_ms` go, and the oldest if there are too many.
local function add_to_audit(stream, entry, keep_ms)
  local id = redis.call('XADD', stream, 'MAXLEN', '~', MOST_ENTRIES, '*', 'e', entry)
  local oldest_ms = math.max(0, tonumber(string.match(id, '^%d+')) - keep_ms)
  redis.call('XTRIM', stream, 'MINID', '~', string.format('%.0f', oldest_ms))
end
