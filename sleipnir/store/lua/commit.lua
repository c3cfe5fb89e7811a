-- commit: apply one transition of one run, all of it or nothing.
--
-- KEYS[1]  run         HASH    slp:{p07}:run:<run>
-- KEYS[2]  state       HASH    ...:state
-- KEYS[3]  frontier    HASH    ...:frontier
-- KEYS[4]  claims      HASH    ...:claims
-- KEYS[5]  journal     LIST    ...:journal
-- KEYS[6]  events      STREAM  ...:events
-- KEYS[7]  gates       HASH    ...:gates
-- KEYS[8]  output      STRING  ...:output
-- KEYS[9]  delta       HASH    ...:delta:<seq>.<attempt>, what the applied result delivered
-- KEYS[10] owner       HASH    slp:{p07}:owner
-- KEYS[11] inbox       STREAM  slp:{p07}:inbox
-- KEYS[12] outbox      ZSET    slp:{p07}:outbox
-- KEYS[13] leases      ZSET    slp:{p07}:leases
-- KEYS[14] timers      ZSET    slp:{p07}:timers
-- KEYS[15] open_gates  ZSET    slp:{p07}:gates; those of namespaces are named after it (store/namespaced.py)
-- KEYS[16] expiring    ZSET    slp:{p07}:expiring
-- KEYS[17] ended       STREAM  slp:{p07}:ended
-- KEYS[18] spec        STRING  ...:spec
-- KEYS[19] items       HASH    ...:items
-- KEYS[20] windows     HASH    ...:windows
-- KEYS[21] children    HASH    ...:children
-- KEYS[22] effects     STREAM  slp:{p07}:effects
-- KEYS[23] session     HASH    slp:{p07}:session:<agent>/<name>, or slp:{p07}:thread:<agent>/<name>; of a run in neither a
--                              key that does not exist
-- KEYS[24] messages    LIST    ...:messages; the same
-- KEYS[25] audit       STREAM  slp:{p07}:audit
-- KEYS[26] cards       HASH    slp:{p07}:lists; the sets that list the run are named after it
-- ARGV[1] control  JSON  see store/commit.py, which builds it. State values are not in it and are never decoded here:
--                        a delivered value goes from `delta` to state and journal inside Redis.
--                        `gone` are visits to close without claims and questions, `drops` fields of items. With
--                        `stops`, claimed visits are taken from their workers, which notice at their next heartbeat; the
--                        inbox gets a `lease_lost` for each, with the journal step that it had `seen`.
--                        `reached`: the budget is used up now.
--                        With `scopes`, what the state gets under keys that begin with one of them is written back: an
--                        effect for each scope.
-- ARGV[2...] texts  opaque here. For each visit of control.open its record, and its question if it has a gate; for each
--                   of control.items the text of a fill, those of a put; of control.steps its header and then state
--                   key, JSON text, ...; state key, JSON text, ... of control.folded; key, JSON text, ... of
--                   control.windows; if control.cost_of, a child run, its total cost as JSON, by fields of
--                   `run`; the output if control.output; the events if control.events; for each of control.effects the
--                   effect, and the id and the record of the child that it starts, or '' and ''; the control.audit entries of the
--                   audit, which are kept for control.audit_ms; the card of the run (runs/cards.py) if control.lists
--
-- Returns  1  applied, now or by an earlier call for the same inbox entry. Calling twice is safe.
--          0  the run is not at control.version, or another entry brought it there than control.last (Redis went back in
--             time): plan again
--          2  control.unless_claimed, and a worker has one of the visits to close; or control.unless_answered, and one
--             of their questions was answered: that is in the inbox. Nothing changed
--         -1  control.epoch does not own this partition any more
--         error  a step writes more than about 3,500 state keys; nothing changed
-- shared: turn_queue
-- shared: audit
-- shared: lists
-- shared: webhooks
local run, state, frontier, claims, journal, events, gates, output = unpack(KEYS, 1, 8)
local delta, owner, inbox, outbox, leases, timers, open_gates, expiring, ended, spec = unpack(KEYS, 9, 18)
local items, windows, children, effects, session, messages, audit, cards = unpack(KEYS, 19, 26)
local control = cjson.decode(ARGV[1])
local none, taken = {}, 1
local OVERLAYS, OVERLAY_END, SAID = '_next', '\30', '_said'  -- as in messages.py
local HELD_MS = '9007199254740991'  -- as in runs/threads.py
local INSTRUCTIONS = '_instructions'  -- as in graph/tools.py
local in_session = control.session and redis.call('HGET', session, 'run') == control.run
local function text()
  taken = taken + 1
  return ARGV[taken]
end

if tonumber(redis.call('HGET', owner, 'epoch')) ~= control.epoch then return -1 end
local at = redis.call('HMGET', run, 'version', 'last_event')
if tonumber(at[1]) ~= control.version or (at[2] or '') ~= control.last then
  return tonumber(at[1]) == control.version + 1 and at[2] == control.event and 1 or 0
end

if control.unless_claimed then
  for _, visit in ipairs(control.close) do
    local claimed = redis.call('HGET', claims, visit.seq)
    local claim = claimed and cjson.decode(claimed)
    if claim and claim.attempt == visit.attempt and not claim.lost then return 2 end
  end
end

if control.unless_answered then
  for _, visit in ipairs(control.close) do
    if visit.gate and redis.call('HEXISTS', gates, visit.seq .. ':answer') == 1 then return 2 end
  end
end

-- Call `each` with one part of `list` after the other: a command accepts as many arguments as a Lua stack holds.
local AT_ONCE = 1000
local function in_parts(list, each)
  for first = 1, #list, AT_ONCE do each(first, math.min(first + AT_ONCE - 1, #list)) end
end

local function delete(key, fields)
  in_parts(fields, function(first, last) redis.call('HDEL', key, unpack(fields, first, last)) end)
end

-- The texts of these fields of `items` in order, with commas between; an empty text is none. They are dropped.
local function taken_from_items(fields)
  local texts = {}
  in_parts(fields, function(first, last)
    local found = redis.call('HMGET', items, unpack(fields, first, last))
    for i = 1, last - first + 1 do
      if found[i] and found[i] ~= '' then texts[#texts + 1] = found[i] end
    end
  end)
  delete(items, fields)
  return table.concat(texts, ',')
end

local function numbered(of, first, count)
  local fields = {}
  for i = 1, count do fields[i] = of .. '.' .. (first + i - 1) end
  return fields
end

-- The results of a map's items in input order, as a JSON list.
local function collected(map)
  return '[' .. taken_from_items(map.pieces or numbered(map.id, 0, map.total)) .. ']'
end

-- Redis does not roll scripts back, so everything that could fail is checked before the first write: a Lua stack holds
-- 8,000 values.
local delivered = control.items and control.delivered and redis.call('HGETALL', delta) or {}
for _, step in ipairs(control.steps) do
  if step.delta then delivered = redis.call('HGETALL', delta) end
  if #delivered + 2 * step.writes > 7000 then
    return redis.error_reply('ERR step ' .. step.step .. ' writes too many state keys')
  end
end

-- visits
if #(control.gone or none) > AT_ONCE and #control.gone + #control.close == redis.call('HLEN', frontier) then
  redis.call('UNLINK', frontier, claims)  -- all are over; deleting thousands of fields one by one takes 20 ms
else
  delete(frontier, control.gone or none)
  delete(claims, control.gone or none)
end
for _, visit in ipairs(control.close) do
  redis.call('HDEL', frontier, visit.seq)
  redis.call('HDEL', claims, visit.seq)
  if visit.member then
    redis.call('ZREM', leases, visit.member)
    redis.call('ZREM', outbox, visit.member)
  end
  if visit.gate then
    redis.call('HDEL', gates, visit.seq, visit.seq .. ':answer', visit.seq .. ':handling')
    redis.call('ZREM', open_gates, visit.gate)
    redis.call('ZREM', open_gates .. ':of:' .. visit.namespace, visit.gate)
  end
end
local publish_ms
local function publish_again(name, option)
  if not publish_ms then
    local time = redis.call('TIME')
    publish_ms = time[1] * 1000 + math.floor(time[2] / 1000) + control.publish_after_ms
  end
  if option then redis.call('ZADD', outbox, option, publish_ms, name) else redis.call('ZADD', outbox, publish_ms, name) end
end
for _, visit in ipairs(control.open) do
  redis.call('HSET', frontier, visit.seq, text())
  if visit.member then publish_again(visit.member) end
  if visit.gate then
    redis.call('HSET', gates, visit.seq, text())
    redis.call('ZADD', open_gates, visit.opened_ms, visit.gate)
    redis.call('SADD', open_gates .. ':of', visit.namespace)
    redis.call('ZADD', open_gates .. ':of:' .. visit.namespace, visit.opened_ms, visit.gate)
    note_occasion(run, 'gate', control.run, function() return {'seq', visit.seq, 'opened_ms', visit.opened_ms} end)
  end
end

for _, name in ipairs(control.wakes or none) do publish_again(name, 'XX') end

-- values of single visits
for _, op in ipairs(control.items or none) do
  local field = op.field
  if op.op == 'put' then
    for i = op.first, op.first + op.count - 1 do redis.call('HSET', items, op.of .. '.' .. i, text()) end
  elseif op.op == 'gather' then
    redis.call('HSET', items, field, taken_from_items(numbered(op.of, op.first, op.count)))
  elseif op.op == 'split' then
    local overlays, i, put = redis.call('HGET', delta, OVERLAYS), 0, {}
    for overlay in string.gmatch((overlays or '') .. OVERLAY_END, '([^' .. OVERLAY_END .. ']*)' .. OVERLAY_END) do
      if overlay ~= '' then
        put[#put + 1] = op.of .. '.' .. i
        put[#put + 1] = overlay
      end
      i = i + 1
    end
    in_parts(put, function(first, last) redis.call('HSET', items, unpack(put, first, last)) end)
  elseif op.op == 'take' and op.key then
    redis.call('HSET', items, field, redis.call('HGET', delta, op.key) or '')
  elseif op.op == 'take' then
    local lines = {redis.call('HGET', items, field) or nil}
    for i = 1, #delivered, 2 do
      lines[#lines + 1] = cjson.encode(delivered[i])
      lines[#lines + 1] = delivered[i + 1]
    end
    redis.call('HSET', items, field, table.concat(lines, '\n'))
  elseif op.op == 'fill' then
    redis.call('HSET', items, field, text())
  elseif op.op == 'forget' then
    redis.call('HDEL', items, op.id .. '.first')
    for turn = 0, op.turn do
      local name, call = op.id .. '.' .. turn, 0
      redis.call('HDEL', items, name, name .. '.user')
      while redis.call('HDEL', items, name .. '.' .. call) == 1 or (turn == op.turn and call < op.calls) do
        call = call + 1
      end
    end
  else
    redis.call('HDEL', items, field)
  end
end
delete(items, control.drops or none)

-- state and journal
local shared = {}  -- the keys to write back, by scope
local function set(key, value)
  redis.call('HSET', state, key, value)
  for _, scope in ipairs(control.scopes or none) do
    if string.sub(key, 1, #scope) == scope then
      shared[scope] = shared[scope] or {}
      shared[scope][key] = true
    end
  end
end
local no_state = {[OVERLAYS] = true, [SAID] = control.session ~= nil}
for _, step in ipairs(control.steps) do
  local entry = {text()}
  if step.keeps_commands then  -- a fork may go on with them; afterwards the values of single visits are dropped
    local overlays = cjson.encode(redis.call('HGET', delta, OVERLAYS) or '')
    entry[1] = string.format('%s,"overlays":{"%d":%s}}', string.sub(entry[1], 1, -2), step.keeps_commands, overlays)
  end
  local function write(key, value)
    if not step.held then set(key, value) end
    entry[#entry + 1] = cjson.encode(key)
    entry[#entry + 1] = value
  end
  if step.delta then
    for i = 1, #delivered, 2 do
      if not no_state[delivered[i]] then write(delivered[i], delivered[i + 1]) end
    end
  end
  if step.collect then write(step.collect.key, collected(step.collect)) end
  for _ = 1, step.writes do write(text(), text()) end
  redis.call('RPUSH', journal, table.concat(entry, '\n'))
end

-- held steps that count from now on, in visit order
local apart = {}
for _, key in ipairs(control.apart or none) do apart[key] = true end
for _, number in ipairs(control.applies or none) do
  local is_key, key = false, nil
  for line in string.gmatch(redis.call('LINDEX', journal, number), '\n([^\n]*)') do
    is_key = not is_key
    if is_key then
      key = cjson.decode(line)
    elseif not apart[key] then
      set(key, line)
    end
  end
end

for _ = 1, control.folded or 0 do set(text(), text()) end
for _ = 1, control.windows or 0 do
  local key, window = text(), text()
  if window == '' then redis.call('HDEL', windows, key) else redis.call('HSET', windows, key, window) end
end

-- the messages that the run adds to its session are stored separately until the run has completed
local said = control.session and control.delivered and redis.call('HGET', delta, SAID)
if said then redis.call('HSET', items, 'said', said) end
if in_session and control.session.completed then
  for line in string.gmatch(redis.call('HGET', items, 'said') or '', '[^\n]+') do
    if line == 'instead' then redis.call('DEL', messages) else redis.call('RPUSH', messages, line) end
  end
  -- Surplus messages are dropped by complete turns: a turn begins with a person's message.
  local extra = redis.call('LLEN', messages) - (control.session.most or math.huge)
  if extra > 0 then
    for i = 0, 500 do
      local message = redis.call('LINDEX', messages, extra + i)
      if not message then break end
      if cjson.decode(message).role == 'user' then
        extra = extra + i
        break
      end
    end
    redis.call('LTRIM', messages, extra, -1)
    redis.call('HINCRBY', session, 'dropped', extra)
  end
  local instructions = redis.call('HGET', state, INSTRUCTIONS)
  if instructions then
    redis.call('HSET', session, 'instructions', instructions, 'instructions_of', control.session.instructions_of)
  end
end

if control.delivered or control.expire_ms then redis.call('DEL', delta) end  -- a run that ends needs no result

-- the run itself
if control.revives then
  for _, key in ipairs({run, spec, state, journal, events, output, frontier, items, windows, children}) do
    redis.call('PERSIST', key)
  end
  if redis.call('HDEL', run, 'ended_ms') == 1 and not control.expire_ms then redis.call('HINCRBY', run, 'retries', 1) end
  redis.call('HDEL', run, 'error', 'failure', 'failed_at', 'retrying')
  if in_session then
    redis.call('HSET', session, 'busy', 1)
    redis.call('PERSIST', session)
    redis.call('PERSIST', messages)
  end
  redis.call('ZREM', expiring, control.run)
end
redis.call('HSET', run, 'version', control.version + 1, 'last_event', control.event, unpack(control.set))
for _, add in ipairs(control.add or none) do redis.call('HINCRBYFLOAT', run, add.field, add.by) end
if control.cost_of then
  -- only the increase since the child's last report is counted; reports may be repeated or late
  local field, cost = control.cost_of .. ':cost', text()
  local counted, total = cjson.decode(redis.call('HGET', children, field) or '{}'), cjson.decode(cost)
  if total.model_calls > (counted.model_calls or 0) then
    for name, sum in pairs(total) do redis.call('HINCRBYFLOAT', run, name, sum - (counted[name] or 0)) end
    redis.call('HSET', children, field, cost)
  end
end
if control.unset then redis.call('HDEL', run, unpack(control.unset)) end
for _, name in ipairs(control.untimers or none) do redis.call('ZREM', timers, name) end
for _, timer in ipairs(control.timers or none) do redis.call('ZADD', timers, timer.due_ms, timer.name) end
if control.output then redis.call('SET', output, text()) end
if control.events then redis.call('XADD', events, 'MAXLEN', '~', 1000, '*', 'e', text()) end
for _ = 1, control.effects or 0 do
  redis.call('XADD', effects, '*', 'run', control.run, 'e', text())
  local child, child_record = text(), text()
  if child ~= '' then redis.call('HSET', children, child, child_record) end
end
for scope, keys in pairs(shared) do
  local listed = {}
  for key in pairs(keys) do listed[#listed + 1] = key end
  local effect = {['do'] = 'share_values', v = 1, scope = scope, keys = listed}
  redis.call('XADD', effects, '*', 'run', control.run, 'e', cjson.encode(effect))
end
for _ = 1, control.audit or 0 do add_to_audit(audit, text(), control.audit_ms) end
if control.lists then
  local kept = redis.call('HMGET', run, 'created_ms', 'cost_usd')
  list_run(cards, control.run, card_with(text(), kept[1] or 0, kept[2]))
end
if control.reached then
  note_occasion(run, 'budget_reached', control.run, function()
    local used = redis.call('HMGET', run, 'cost_usd', 'tokens_in', 'tokens_out')
    return {'cost_usd', used[1] or '0', 'tokens_in', used[2] or '0', 'tokens_out', used[3] or '0'}
  end)
end
redis.call('XDEL', inbox, control.event)

if control.stops then
  -- The number of the last journal step that had reached the inbox at a time, for claims that do not have the number
  -- of the last one. The steps are in the order of their times.
  local function last_step_at(ms)
    local first, last = 0, redis.call('LLEN', journal) - 1
    while first < last do
      local middle = math.ceil((first + last) / 2)
      local at = string.match(redis.call('LINDEX', journal, middle), '"at_ms": ?(%d+)')
      if tonumber(at or 0) <= ms then first = middle else last = middle - 1 end
    end
    return first
  end
  local taken_back = redis.call('HGETALL', claims)
  for i = 1, #taken_back, 2 do
    local seq, claim = taken_back[i], cjson.decode(taken_back[i + 1])
    if not claim.delivered and not claim.lost then
      claim.lost = true
      redis.call('HSET', claims, seq, cjson.encode(claim))
      redis.call('ZREM', leases, control.run .. '/' .. seq .. '/' .. claim.attempt)
      redis.call('XADD', inbox, '*', 't', 'lease_lost', 'run', control.run, 'seq', seq, 'attempt', claim.attempt,
        'worker', claim.worker, 'reason', 'stopped', 'seen', claim.step or last_step_at(claim.started_ms))
    end
  end
end
if control.continues then redis.call('XADD', inbox, '*', 't', 'continued', 'run', control.run) end

if control.expire_ms then
  redis.call('DEL', claims, gates)
  -- the data that `retry` needs is kept as long as the rest
  if not control.keeps then redis.call('DEL', frontier, items, windows) end
  if in_session and control.session.thread then  -- its state is what the thread goes on from
    redis.call('ZADD', expiring, HELD_MS, control.run)
    redis.call('HSET', session, 'expire_ms', control.expire_ms)
  else
    for _, key in ipairs({run, spec, state, journal, events, output, frontier, items, windows, children}) do
      redis.call('PEXPIRE', key, control.expire_ms)
    end
    redis.call('ZADD', expiring, control.expires_at_ms, control.run)
  end
  redis.call('XADD', ended, 'MAXLEN', '~', 10000, '*', 'run', control.run)
  note_occasion(run, 'run_ended', control.run, function()
    local names, fields = {'status', 'error', 'created_ms', 'started_ms', 'ended_ms', 'cost_usd', 'batch'}, {}
    local found = redis.call('HMGET', run, unpack(names))
    for i, name in ipairs(names) do
      if found[i] then
        fields[#fields + 1] = name
        fields[#fields + 1] = beginning(found[i], 2000)
      end
    end
    return fields
  end)
  if in_session then
    redis.call('HDEL', session, 'busy')
    redis.call('HSET', session, 'used_ms', control.session.at_ms)
    if control.session.expire_ms then
      redis.call('PEXPIRE', session, control.session.expire_ms)
      redis.call('PEXPIRE', messages, control.session.expire_ms)
    end
  end
  if control.session and control.session.thread then  -- the next queued turn begins; or this one was queued itself
    local due = leave_queue(session, control.run)
    if due and redis.call('HEXISTS', session, 'busy') == 0 then
      redis.call('XADD', inbox, '*', 't', 'turn', 'run', due)
    end
  end
end
return 1
