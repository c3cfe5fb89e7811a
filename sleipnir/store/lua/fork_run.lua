-- fork_run: accept a run that goes on from a checkpoint of another one, its source, in the same partition; that of
-- a row of a batch, or of a thread, may be in another one. With `name` it becomes the next turn of that thread.
--
-- KEYS[1] source   HASH    slp:{p07}:run:<source>
-- KEYS[2] past     HASH    ...:state of the source
-- KEYS[3] run      HASH    slp:{p07}:run:<run>
-- KEYS[4] state    HASH    ...:state
-- KEYS[5] journal  LIST    ...:journal
-- KEYS[6] inbox    STREAM  slp:{p07}:inbox
-- KEYS[7] runs     ZSET    slp:{p07}:runs
-- KEYS[8] specs    STRING  ...:spec
-- KEYS[9] forks    HASH    ...:children of the source
-- KEYS[10] timers  ZSET    slp:{p07}:timers
-- KEYS[11] source_inbox STREAM slp:{p12}:inbox of the source
-- KEYS[12] thread  HASH    slp:{p07}:thread:<agent>/<name>; as those below, not used if `name` is ''
-- KEYS[13] threads ZSET    slp:{p07}:threads
-- KEYS[14] expiring ZSET   slp:{p07}:expiring
-- KEYS[15] last_state HASH ...:state of the last run of the thread; as those below, not used if `before` is ''
-- KEYS[16] last_run HASH   slp:{p07}:run:<before>
-- KEYS[17] last_spec  STRING  ...:spec of the last run
-- KEYS[18] last_journal  LIST  ...:journal of the last run
-- KEYS[19] last_events  STREAM  ...:events of the last run
-- KEYS[20] last_output  STRING  ...:output of the last run
-- KEYS[21] last_frontier  HASH  ...:frontier of the last run
-- KEYS[22] last_items  HASH  ...:items of the last run
-- KEYS[23] last_windows  HASH  ...:windows of the last run
-- KEYS[24] last_children  HASH  ...:children of the last run
-- KEYS[25] items    HASH   ...:items of the run
-- KEYS[26] audit    STREAM  slp:{p07}:audit
-- KEYS[27] cards    HASH   slp:{p07}:lists; the sets that list the run are named after it
-- ARGV[1] run_id   str
-- ARGV[2] spec     JSON    runs.RunSpec; opaque here
-- ARGV[3] step     JSON    header of journal step 0; gets the time here. Its `overlays` are the updates of commands
-- ARGV[4] source_id  str
-- ARGV[5] cancel_by  str   who asks that the source is cancelled
-- ARGV[6] cancel_why str   why; '': the source stays as it is
-- ARGV[7] at       int     the state of the source is copied here if this is its last journal step; -1: `values` are the state
-- ARGV[8] reference JSON   runs.PastState: nothing is copied, and take_past.lua does that later; '': now
-- ARGV[9] due_ms   int     of a reference: the time of a timer of the run that lets it take its state
-- ARGV[10] name     str     `agent/name` of a thread; '': the fork is in none
-- ARGV[11] before   str     the last run of the thread that the caller knows; '' if there is none
-- ARGV[12] expire_ms int    how long that is kept from now on, if its end did not say
-- ARGV[13] fields  int     number of pairs of fields of `run` that follow, then number of pairs of `values`
-- ARGV[14] values  int
-- ARGV[15] entry    JSON    of the audit, access/audit.py; '' for none
-- ARGV[16] keep_ms  int     how long entries are kept
-- ARGV[17] card     JSON    runs/cards.py; gets the time here
-- ARGV[18] apart    int     1: the source is in a slot of a cluster that this script cannot reach. Its keys are not used,
--                  `values` or a complete reference have the state, and list_fork.lua follows
-- ARGV[19...] texts  field, value, ... of `run`; state key, JSON text, ... of values; state key, JSON text, ... of the
--                  changes that the fork begins with, which are the writes of its step 0
--
-- Returns {1, ''}    created
--         {0, ''}    a run of this id exists; nothing changed. Calling twice is safe.
--         {-1, run}  the last run of the thread is not over, or this one is queued; nothing changed
--         {-2, run}  another run is its last one by now; nothing changed
--         {-3, run}  its last run is gone; nothing changed
--         {-4, ''}   the source is gone, or its state was to be copied and it has gone on; nothing changed
-- shared: turns
-- shared: audit
-- shared: lists
-- shared: forks
local source, past, run, state, journal, inbox, runs, specs, forks, timers, source_inbox = unpack(KEYS, 1, 11)
local thread, threads, expiring, last_state, last_run, last_spec, last_journal, last_events = unpack(KEYS, 12, 19)
local last_output, last_frontier, last_items, last_windows, last_children, items, audit, cards = unpack(KEYS, 20, 27)
local run_id, spec, step, source_id, cancel_by, cancel_why = unpack(ARGV, 1, 6)
local at, reference, due_ms = tonumber(ARGV[7]), ARGV[8], ARGV[9]
local name, before, expire_ms = unpack(ARGV, 10, 12)
local fields, values, audit_entry, keep_ms = tonumber(ARGV[13]), tonumber(ARGV[14]), ARGV[15], tonumber(ARGV[16])
local card, apart = ARGV[17], ARGV[18] == '1'
local FIRST = 19  -- of the texts
local OVERLAY_END = '\30'  -- as in messages.py

if redis.call('EXISTS', run) == 1 then return {0, ''} end
if not apart then
  local was = redis.call('HMGET', source, 'status', 'step', 'past')
  if not was[1] then return {-4, ''} end
  -- a reference stays right if the source goes on: take_past.lua looks at both numbers again
  if reference == '' and at >= 0 and (tonumber(was[2]) ~= at or was[3]) then return {-4, ''} end
end
local refused = name ~= '' and turn_refused(thread, last_run, before)
if refused then return refused end
if reference ~= '' then
  local refers = cjson.decode(reference)
  if not apart then refers.keys = at >= 0 and redis.call('HLEN', past) or 0 end
  redis.call('HSET', run, 'past', cjson.encode(refers))
  redis.call('ZADD', timers, due_ms, run_id .. '/past')
elseif at >= 0 then
  redis.call('COPY', past, state)
  redis.call('PERSIST', state)
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', specs, spec)
redis.call('HSET', run, 'status', 'submitted', 'version', 0, 'seq', 0, 'step', 0, 'created_ms', now_ms)
local header = cjson.decode(step)
header.at_ms = now_ms
local entry = {cjson.encode(header)}
for i = FIRST, #ARGV, 2 do
  local number = (i - FIRST) / 2
  if number < fields then
    redis.call('HSET', run, ARGV[i], ARGV[i + 1])
  elseif reference == '' then
    redis.call('HSET', state, ARGV[i], ARGV[i + 1])
  end
  if number >= fields + values then
    entry[#entry + 1] = cjson.encode(ARGV[i])
    entry[#entry + 1] = ARGV[i + 1]
  end
end
redis.call('RPUSH', journal, table.concat(entry, '\n'))
redis.call('ZADD', runs, now_ms, run_id)
list_run(cards, run_id, card_with(card, now_ms))
for seq, overlays in pairs(header.overlays or {}) do
  local i = 0
  for overlay in string.gmatch(overlays .. OVERLAY_END, '([^' .. OVERLAY_END .. ']*)' .. OVERLAY_END) do
    if overlay ~= '' then redis.call('HSET', items, seq .. '.' .. i, overlay) end
    i = i + 1
  end
end

if not apart then list_fork(source, forks, source_inbox, run_id, source_id, cancel_by, cancel_why) end
redis.call('XADD', inbox, '*', 't', 'forked', 'run', run_id)
if audit_entry ~= '' then add_to_audit(audit, audit_entry, keep_ms) end

if name ~= '' then
  if before ~= '' then
    let_go(thread, last_run, {
      last_run, last_spec, last_state, last_journal, last_events, last_output, last_frontier, last_items, last_windows,
      last_children,
    }, expiring, before, expire_ms, now_ms)
  end
  take_turn(thread, threads, name, run_id, now_ms)
end
return {1, ''}
