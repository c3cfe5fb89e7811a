-- tell: pass a request for a run to the scheduler, if the run's status allows it.
--
-- KEYS[1] run     HASH    slp:{p07}:run:<run>
-- KEYS[2] inbox   STREAM  slp:{p07}:inbox
-- KEYS[3] session HASH    slp:{p07}:session:<agent>/<name>; of a run without one a key that does not exist
-- ARGV[1] run_id  str
-- ARGV[2] type    str     cancelled, paused, paused_until, resumed, retried, skipped, child_gone or told
-- ARGV[3] source  str     for an effect: its kind and source partition (`tell_child:7`); '' for a client's request
-- ARGV[4] number  str     for an effect: its stream id; for a client: a token of ID_LENGTH characters; '' for no fence
-- ARGV[5] version int     `retried` only: the version of the run with which it ended; '' for any
-- ARGV[6...] fields  name, text, ... of the inbox entry
--
-- Returns  the previous status of the run; `retried` applies to a failed run, `skipped` also to an unfinished one, the
--          others only to that; otherwise nothing changes
--          'known'     this request, or a later effect of this source, was received before; nothing changed
--          'retrying'  for a failed run: it was already requested, and the scheduler has not applied it yet
--          'left'      for a failed run: the session of the run has continued without it; nothing changed
--          'revived'   for `retried` with a version: the run has continued since; nothing changed
--          False (nil) there is no such run
-- A run that is not paused may be resumed: the entry that pauses it may be ahead in the inbox. A failed run with a
-- requested retry counts as running from now on, like a cancelled child run (retry_child.lua): later requests are after
-- the retry in the inbox. Calling twice is safe with a number: the numbers of one source's effects increase, and the last
-- eight tokens of clients are kept. Without a number the planner ignores repetitions.
local run, inbox, session, run_id, type, source, number, version = KEYS[1], KEYS[2], KEYS[3], unpack(ARGV, 1, 5)
local WISHES_BYTES = 96  -- eight tokens

local status = redis.call('HGET', run, 'status')
if not status then return false end

local field, last = 'wishes', nil
if number ~= '' then
  if source ~= '' then field = 'f:' .. source end
  last = redis.call('HGET', run, field)
end
if last and source == '' and string.find(last, number, 1, true) then return 'known' end
if last and source ~= '' then
  local ms, seq = string.match(number, '^(%d+)-(%d+)$')
  local last_ms, last_seq = string.match(last, '^(%d+)-(%d+)$')
  ms, last_ms = tonumber(ms), tonumber(last_ms)
  if ms < last_ms or (ms == last_ms and tonumber(seq) <= tonumber(last_seq)) then return 'known' end
end

local retrying = redis.call('HEXISTS', run, 'retrying') == 1
local fits
if type == 'retried' or (type == 'skipped' and status == 'failed') then
  local ended = redis.call('HGET', run, 'end_version')
  if version ~= '' and ended and ended ~= version then return 'revived' end
  if status == 'failed' and retrying then return 'retrying' end
  fits = status == 'failed'
  local owner = fits and redis.call('HGET', session, 'run')
  if owner and owner ~= run_id then return 'left' end
  if owner then redis.call('HSET', session, 'busy', 1) end
  if fits then redis.call('HSET', run, 'retrying', 1) end
else
  if retrying and (status == 'failed' or status == 'cancelled') then status = 'running' end
  fits = status ~= 'completed' and status ~= 'failed' and status ~= 'cancelled'
end
if source ~= '' then
  redis.call('HSET', run, field, number)
elseif fits and number ~= '' then
  redis.call('HSET', run, field, string.sub((last or '') .. number, -WISHES_BYTES))
end
if not fits then return status end
redis.call('XADD', inbox, '*', 't', type, 'run', run_id, unpack(ARGV, 6))
return status
