-- A source lists its forks, and this list expires with all of its keys. With `cancel_why`, its cancellation is requested.
local function list_fork(source, forks, source_inbox, run_id, source_id, cancel_by, cancel_why)
  local FORKS_PAGE = 100  -- as in store/keys.py
  local FINAL = {completed = true, failed = true, cancelled = true}
  local count = redis.call('HINCRBY', forks, 'forks:', 1)
  local page = 'forks:' .. math.floor((count - 1) / FORKS_PAGE)
  redis.call('HSET', forks, page, (redis.call('HGET', forks, page) or '') .. run_id .. ' ')
  local left_ms = redis.call('PTTL', source)
  if left_ms >= 0 then redis.call('PEXPIRE', forks, left_ms) end

  -- a run whose retry is requested is not over: as in tell.lua
  local was = redis.call('HMGET', source, 'status', 'retrying')
  if cancel_why ~= '' and (was[2] or not FINAL[was[1]]) then
    redis.call('XADD', source_inbox, '*', 't', 'cancelled', 'run', source_id, 'by', cancel_by, 'reason', cancel_why)
  end
end
