-- turn_queue: the queued turns of a thread. A script with the line `-- shared: turn_queue` has this text there.

-- Take a run from the queued turns of the thread. Returns the first of those that are left, if any.
local function leave_queue(thread, run_id)
  local left = {}
  for id in string.gmatch(redis.call('HGET', thread, 'waiting') or '', '%S+') do
    if id ~= run_id then left[#left + 1] = id end
  end
  if #left > 0 then
    redis.call('HSET', thread, 'waiting', table.concat(left, ' '))
  else
    redis.call('HDEL', thread, 'waiting')
  end
  return left[1]
end
