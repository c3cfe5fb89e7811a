-- turns: how a run becomes the last one of a thread. A script with the line `-- shared: turns` has this text there.

-- Why the thread takes no run now: {code, run}, as start_turn.lua says; nil: it takes one. `before` is the last run that
-- the caller knows, '' if there is none.
local function turn_refused(thread, last_run, before)
  local known = redis.call('HMGET', thread, 'run', 'busy', 'waiting')
  local last = known[1] or ''
  if last ~= before then return {-2, last} end
  if before == '' then return nil end
  if redis.call('EXISTS', last_run) == 0 then return {-3, before} end
  if known[2] then return {-1, before} end
  if known[3] then return {-1, string.match(known[3], '%S+')} end
  return nil
end

-- The last run of the thread expires, with these keys, like others from now on. Nothing is left to do if it does
-- already, or is gone.
local function let_go(thread, last_run, keys, expiring, run_id, expire_ms, now_ms)
  if redis.call('PTTL', last_run) ~= -1 then return end
  local left_ms = tonumber(redis.call('HGET', thread, 'expire_ms') or expire_ms)
  for _, key in ipairs(keys) do redis.call('PEXPIRE', key, left_ms) end
  redis.call('ZADD', expiring, now_ms + left_ms, run_id)
end

local function take_turn(thread, threads, name, run_id, now_ms)
  redis.call('HSETNX', thread, 'created_ms', now_ms)
  redis.call('HSET', thread, 'run', run_id, 'busy', 1, 'used_ms', now_ms)
  redis.call('HINCRBY', thread, 'turns', 1)
  redis.call('HDEL', thread, 'removed')
  redis.call('PERSIST', thread)
  redis.call('ZADD', threads, now_ms, name)
end

-- Remove what a turn does not begin with, as in runs/threads.py: values of one run, shared values, and what tells of its
-- failures. It is called before the turn gets its own values.
local function forget_own(state)
  redis.call('HDEL', state, '_error', 'last_error')
  for _, key in ipairs(redis.call('HKEYS', state)) do
    local scope = string.match(key, '^%a+:')
    if scope == 'temp:' or scope == 'invocation:' or scope == 'user:' or scope == 'app:' then
      redis.call('HDEL', state, key)
    end
  end
end
