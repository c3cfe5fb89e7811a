-- claim: give one queued visit to one worker, under a lease, with the state it reads.
--
-- KEYS[1] run       HASH    slp:{p07}:run:<run>
-- KEYS[2] state     HASH    ...:state
-- KEYS[3] frontier  HASH    ...:frontier
-- KEYS[4] claims    HASH    ...:claims
-- KEYS[5] events    STREAM  ...:events
-- KEYS[6] leases    ZSET    slp:{p07}:leases
-- KEYS[7] outbox    ZSET    slp:{p07}:outbox
-- KEYS[8] paused    STRING  slp:{p07}:paused
-- KEYS[9] spec      STRING  ...:spec
-- KEYS[10] items    HASH    ...:items
-- KEYS[11] inbox    STREAM  slp:{p07}:inbox
-- KEYS[12] generation HASH  slp:generation, in a cluster slp:{pNN}:generation
-- KEYS[13] holds    HASH    slp:{p07}:holds
-- ARGV[1] member    str     run/seq/attempt
-- ARGV[2] seq       int
-- ARGV[3] attempt   int     the attempt the message names
-- ARGV[4] worker    str
-- ARGV[5] token     str     unique per execution: the same token may call again after a lost reply
-- ARGV[6] lease_ms  int
-- ARGV[7] all       int     1: return the whole state, 0: only the keys that follow
-- ARGV[8] node      str     the node, role, agent and bundle that the message names must be those of the run's records:
-- ARGV[9] role      str     a message from the broker must not decide what is executed for a run
-- ARGV[10] spec_head str    {"agent":"...","bundle":"...", the first part of the run's spec, without the closing brace
-- ARGV[11] reads    int     the greatest version of a record that the caller reads
-- ARGV[12...] wanted  state keys
--
-- Returns  {1, spec, started_ms, item, overlay, part, talk, step, limited_from, key, JSON text, ...}  claimed (a missing key is left out).
--                `item` is the visit's runs.Item as JSON, or ''; `overlay` lines of values that only this visit sees, or
--                ''; `part` its runs.Part as JSON, or ''; `talk` the conversation of its loop: for a turn the first
--                messages to the model ('' in turn 0) and for each earlier turn {reply, result, ...}, followed, if it had
--                no calls, by the next messages to the model; in turn 0 of a run in a session, the session's messages as
--                a JSON list; for a call {{reply}}; for a visit that is given a value, that value, before the {reply} of a
--                call; `step` the number of its super-step, and for a visit that sees an
--                earlier state `@` and the journal step of that, `limited_from` that of the run
--          {0, 'gone'}    the visit or its run is over, or the visit is not for workers now
--          {0, 'stale'}   a newer attempt exists
--          {0, 'taken'}   this attempt has been claimed already
--          {0, 'forged'}  the message names another node, role, agent or bundle than the run's records
--          {0, 'unreadable'}  the visit or the spec is from a newer release, or damaged; the visit stays in the outbox
--          {0, 'paused'}  the run, its namespace, or the deployment is held; the visit stays in the outbox
--          {0, 'restored'}  the visit must run once, and was queued before Redis may have lost data: a person is asked
--                           (the scheduler reads `lease_lost` with this reason)
--          {0, 'unsettled'} such a visit, and no scheduler has checked yet whether Redis lost data; it stays in the outbox
-- shared: holds
local run, state, frontier, claims, events, leases, outbox, paused, spec, items, inbox, generation, holds = unpack(KEYS)
local member, seq, attempt, worker, token = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local lease_ms, all, node, role, spec_head = tonumber(ARGV[6]), ARGV[7] == '1', ARGV[8], ARGV[9], ARGV[10]
local reads = tonumber(ARGV[11])

local text = redis.call('HGET', frontier, seq)
if not text then return {0, 'gone'} end
local read, visit = pcall(cjson.decode, text)
if not read or type(visit) ~= 'table' or (visit.v ~= 1 and (tonumber(visit.v) or 1) > reads) then
  return {0, 'unreadable'}
end
if visit.attempt ~= attempt then return {0, 'stale'} end
-- It is kept, but not for workers: it waits for others of its step or for a slot, or its run has failed.
if not visit.queue or visit.failed then return {0, 'gone'} end
local submitted = redis.call('GET', spec)
if not submitted then return {0, 'gone'} end
if visit.node ~= node or (visit.role or 'node') ~= role then return {0, 'forged'} end
-- A spec in the form of this release is not decoded.
if string.sub(submitted, 1, #spec_head) ~= spec_head or string.sub(submitted, -6) ~= '"v":1}' then
  local is_json, found = pcall(cjson.decode, submitted)
  if not is_json or type(found) ~= 'table' or (tonumber(found.v) or 1) > reads then return {0, 'unreadable'} end
  local named = cjson.decode(spec_head .. '}')
  if found.agent ~= named.agent or found.bundle ~= named.bundle then return {0, 'forged'} end
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local about = redis.call('HMGET', run, 'status', 'limited_from')
local claimed = redis.call('HGET', claims, seq)
local claim = claimed and cjson.decode(claimed)
if claim and claim.attempt == attempt then
  if claim.token ~= token or claim.delivered or claim.lost then return {0, 'taken'} end
else
  if about[1] == 'paused' or is_held(run, submitted, paused, holds) then return {0, 'paused'} end
  if visit.generation then
    local found = redis.call('HMGET', generation, 'data', 'server')
    if found[2] ~= string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') then return {0, 'unsettled'} end
    if found[1] ~= visit.generation then
      redis.call('HSET', claims, seq, cjson.encode({attempt = attempt, worker = worker, token = token, lost = true}))
      redis.call('ZREM', outbox, member)
      redis.call('XADD', inbox, '*', 't', 'lease_lost', 'run', string.match(member, '^(.*)/%d+/%d+$'), 'seq', seq,
        'attempt', attempt, 'worker', worker, 'reason', 'restored')
      return {0, 'restored'}
    end
  end
  claim = {attempt = attempt, worker = worker, token = token, started_ms = now_ms}
  if visit.lineage then claim.step = tonumber(redis.call('HGET', run, 'step') or 0) end  -- of a `dag`: what it sees
  redis.call('HSET', claims, seq, cjson.encode(claim))
  redis.call('ZREM', outbox, member)
  -- Maps and loops report their progress; a line each would hide other events. Functions around a run are no node.
  if not visit.item and not visit.part and visit.role ~= 'before_run' and visit.role ~= 'after_run' then
    redis.call('XADD', events, 'MAXLEN', '~', 1000, '*', 'e',
      cjson.encode({{'visit_started', {seq = tonumber(seq), node = visit.node, attempt = attempt, worker = worker}}}))
  end
end
redis.call('ZADD', leases, now_ms + lease_ms, member)

local overlay = visit.overlay and redis.call('HGET', items, visit.overlay) or ''
local talk, part = {}, visit.part
if visit.given then
  talk[1] = redis.call('HGET', items, visit.given) or ''
  if part and visit.role == 'tool' then talk[2] = {redis.call('HGET', items, part.loop .. '.' .. part.turn)} end
elseif part and part.call then
  talk = {{redis.call('HGET', items, part.loop .. '.' .. part.turn)}}
elseif part then
  talk[1] = redis.call('HGET', items, part.loop .. '.first') or ''
  if part.turn == 0 then talk[2] = redis.call('HGET', items, 'history') or nil end
  for turn = 0, part.turn - 1 do
    local name, said, call = part.loop .. '.' .. turn, {}, 0
    said[1] = redis.call('HGET', items, name)
    local result = redis.call('HGET', items, name .. '.0')
    while result do
      said[#said + 1], call = result, call + 1
      result = redis.call('HGET', items, name .. '.' .. call)
    end
    talk[#talk + 1] = said
    local follow_up = redis.call('HGET', items, name .. '.user')
    if follow_up then talk[#talk + 1] = follow_up end
  end
end
local reply = {
  1, submitted, claim.started_ms, visit.item and cjson.encode(visit.item) or '', overlay,
  part and cjson.encode(part) or '', talk,
  visit.sees and (visit.depth or 0) .. '@' .. visit.sees or visit.depth or 0, tonumber(about[2] or 0),
}
if all then
  local pairs_ = redis.call('HGETALL', state)
  for i = 1, #pairs_ do reply[#reply + 1] = pairs_[i] end
else
  for first = 12, #ARGV, 1000 do  -- Lua's stack holds about 8,000 values
    local values = redis.call('HMGET', state, unpack(ARGV, first, math.min(first + 999, #ARGV)))
    for i = 1, #values do
      if values[i] then
        reply[#reply + 1] = ARGV[first + i - 1]
        reply[#reply + 1] = values[i]
      end
    end
  end
end
return reply
