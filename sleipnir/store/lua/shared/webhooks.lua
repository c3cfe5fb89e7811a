-- webhooks: what webhooks may be about. A script with the line `-- shared: webhooks` has this text there.

local MOST_NOTES = 100000  -- of a partition that nobody reads

-- Note what happened to a run or a batch (`of`), if a webhook waits for it: only then are its fields described. `key` is any
-- key of the partition; without webhooks this reads one missing key.
local function note_occasion(key, kind, of, describe)
  local notes = string.match(key, '^.-{[^}]*}') .. ':webhooks'
  for _, kinds in ipairs(redis.call('HVALS', notes .. ':wanted')) do
    if string.find(kinds, ' ' .. kind .. ' ', 1, true) then
      if redis.call('XLEN', notes) < MOST_NOTES then
        redis.call('XADD', notes, '*', 't', kind, 'of', of, unpack(describe()))
      else
        redis.call('HINCRBY', notes .. ':lost', kind, 1)
      end
      return
    end
  end
end

-- The first `most` bytes of a text, without a part of a character at the end.
local function beginning(text, most)
  if #text <= most then return text end
  while most > 0 and string.byte(text, most + 1) >= 128 and string.byte(text, most + 1) < 192 do most = most - 1 end
  return string.sub(text, 1, most)
end
