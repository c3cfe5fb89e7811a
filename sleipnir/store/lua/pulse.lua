-- pulse: show that a scheduler reaches Redis and can write, and begin a new generation if Redis has changed.
--
-- KEYS[1] generation  HASH  slp:generation, in a cluster slp:{pNN}:generation
-- ARGV[1] seen_id     str   the generation that the caller knows; '' for none
-- ARGV[2] seen_pulse  int   the last pulse that the caller got; 0 for none
-- ARGV[3] fresh_id    str   random: the id of a generation that begins with this call
-- ARGV[4] lease_ms    int
-- ARGV[5] gap_ms      int   a longer time without a pulse may have kept workers from renewing their leases
-- ARGV[6] stepped     int   1: the caller has seen Redis' clock step since its last pulse
-- ARGV[7] restored    int   1: a person says that a backup was restored
-- ARGV[8] servers     str   '-', in a cluster followed by the run ids of its primaries, as of now; '' for not known
--
-- Returns {'moved?'} if `servers` must be known: nothing was written; else {id, data, since_ms, why, pulse, steady_ms, now_ms, last_pulse_ms}; last_pulse_ms is 0 for the first.
--
-- Every call writes first, so a Redis that refuses writes (full, a replica, a disk that fails) refuses the pulse.
-- `pulse` only increases; a stored one below the caller's means that Redis has lost acknowledged data. `data`
-- is the id of the last generation that may have begun with such a loss. Calling twice with one fresh_id begins one
-- generation. If the server before is still a primary, the partition was moved from it, and nothing is lost.
local generation = KEYS[1]
local seen_id, seen_pulse, fresh_id = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local lease_ms, gap_ms, stepped, restored = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7] == '1'

local servers = ARGV[8]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local info = redis.call('INFO', 'server')
local server, uptime_s = string.match(info, 'run_id:(%w+)') or '', tonumber(string.match(info, 'uptime_in_seconds:(%d+)'))
local stored = redis.call('HMGET', generation, 'id', 'data', 'since_ms', 'why', 'pulse', 'pulse_ms',
  'steady_ms', 'server', 'stopped')
local id, data, since_ms, why = stored[1], stored[2], tonumber(stored[3] or 0), stored[4]
local pulse, pulse_ms, steady_ms = tonumber(stored[5] or 0), tonumber(stored[6] or 0), tonumber(stored[7] or 0)
local last_server, was_stopped = stored[8], stored[9]

local was_moved = false
if last_server and last_server ~= server then
  if servers == '' then return {'moved?'} end
  was_moved = string.find(servers, ' ' .. last_server, 1, true) ~= nil
end

local reason, lost = nil, true
if id == fresh_id then
  reason = nil
elseif not id then
  reason = seen_id == '' and 'first' or 'emptied'
elseif restored then
  reason = 'restored'
elseif last_server ~= server and not was_moved then
  reason, lost = was_stopped and 'stopped_cleanly' or 'restarted', not was_stopped
elseif pulse < seen_pulse then
  reason = 'went_back'
elseif (stepped and id == seen_id) or pulse_ms > now_ms + gap_ms then
  reason, lost = 'clock_stepped', false
end

-- Far above the pulses that other schedulers may have got before the loss, so that each of them need not begin a
-- generation.
pulse = math.max(pulse, seen_pulse) + (reason and 1000 or 1)
redis.call('HSET', generation, 'pulse', pulse, 'pulse_ms', now_ms)
if reason then
  id, since_ms, why = fresh_id, now_ms, reason
  if lost then data = id end
  redis.call('HSET', generation, 'id', id, 'data', data, 'since_ms', since_ms, 'why', why, 'server', server)
end
if was_moved then redis.call('HSET', generation, 'server', server) end
redis.call('HDEL', generation, 'stopped')

local wait_ms = 0
if reason == 'first' then
  wait_ms = lease_ms - math.min(lease_ms, (uptime_s or 0) * 1000)
elseif reason or now_ms - pulse_ms > gap_ms then
  wait_ms = lease_ms
end
if wait_ms > 0 then steady_ms = math.max(steady_ms, now_ms + wait_ms) end
steady_ms = math.min(steady_ms, now_ms + lease_ms)
redis.call('HSET', generation, 'steady_ms', steady_ms)
return {id, data, since_ms, why, pulse, steady_ms, now_ms, pulse_ms}
