-- list_fork: list a fork at its source, which is in another slot of a cluster than the fork (fork_run.lua).
--
-- KEYS[1] source  HASH    slp:{p12}:run:<source>
-- KEYS[2] forks   HASH    ...:children of the source
-- KEYS[3] inbox   STREAM  slp:{p12}:inbox
-- ARGV[1] run_id  str     the fork
-- ARGV[2] source_id  str
-- ARGV[3] cancel_by  str   who asks that the source is cancelled
-- ARGV[4] cancel_why str   why; '': the source stays as it is
--
-- Returns 1; 0 if it is listed already, or the source is gone: nothing changed. Calling twice is safe.
-- shared: forks
local source, forks, inbox = unpack(KEYS)
local run_id, source_id, cancel_by, cancel_why = unpack(ARGV)

if redis.call('EXISTS', source) == 0 then return 0 end
local count = tonumber(redis.call('HGET', forks, 'forks:') or 0)
for page = math.max(0, math.floor((count - 1) / 100) - 1), math.floor((count - 1) / 100) do  -- the last two
  if string.find(redis.call('HGET', forks, 'forks:' .. page) or '', run_id .. ' ', 1, true) then return 0 end
end
list_fork(source, forks, inbox, run_id, source_id, cancel_by, cancel_why)
return 1
