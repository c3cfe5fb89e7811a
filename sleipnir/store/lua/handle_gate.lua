-- handle_gate: what people do with an open question besides answering it: claim, release, assign, snooze and comment it.
--
-- KEYS[1] gates    HASH    slp:{p07}:run:<run>:gates
-- KEYS[2] claimed  ZSET    slp:{p07}:gates:claimed
-- KEYS[3] snoozed  ZSET    slp:{p07}:gates:snoozed:<person>
-- KEYS[4] events   STREAM  slp:{p07}:run:<run>:events
-- KEYS[5] audit    STREAM  slp:{p07}:audit
-- KEYS[6] inbox    STREAM  slp:{p07}:inbox
-- ARGV[1] op         str   'claim', 'release', 'assign', 'snooze' or 'comment'
-- ARGV[2] name       str   <run>/<seq>
-- ARGV[3] seq        int
-- ARGV[4] attempt    int   identifies the question: a visit whose worker is lost again asks again
-- ARGV[5] by         str   who does it, and from where
-- ARGV[6] person     str   who does it, by name
-- ARGV[7] role       str   the access role of the person, or of the one that gets the question; '' for none
-- ARGV[8] assignee   str   who gets the question; '' for nobody
-- ARGV[9] for_ms     int   how long the claim lasts
-- ARGV[10] until_ms  int   when the question is seen again; 0 at once
-- ARGV[11] token     str   of this request
-- ARGV[12] take_over str   '1': also from a person who has claimed it
-- ARGV[13] entry     JSON  access/audit.py; the script adds what was before
-- ARGV[14] keep_ms   int   how long that entry is kept
-- ARGV[15] comment   str   what the person says
-- ARGV[16] most      int   comments that a question keeps
--
-- Returns  {1, until_ms}     done, now or before; until_ms of a claim or a snooze, else 0
--          {0, text, by, at_ms}  answered before, with that text; nothing changed
--          {-1}              no such open question
--          {-2, why}         the person, or who gets it, may not answer: 'author' or 'people'
--          {-5, person, at_ms, until_ms}  another person has claimed it then, until then
--          {-6}              the question has as many comments as it keeps
-- A claim lasts until its time or its release; who has it may claim it again, and then it lasts longer. A snooze is seen
-- by its person alone. A comment is passed on to the scheduler, which writes it into the journal, and with it the entry of
-- the audit; the same one of the same person is kept once. What changes nothing writes no entry of the audit. Calling
-- twice is safe.
-- shared: audit
-- shared: handling
local gates, claimed, snoozed, events, audit, inbox = unpack(KEYS)
local op, name, seq, attempt, by, person, role, assignee = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), unpack(ARGV, 5, 8)
local for_ms, until_ms, token, take_over = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11], ARGV[12] == '1'
local entry, keep_ms, comment, most = ARGV[13], tonumber(ARGV[14]), ARGV[15], tonumber(ARGV[16])

local stored = redis.call('HMGET', gates, seq, seq .. ':answer', seq .. ':handling')
local gate = stored[1] and cjson.decode(stored[1])
if not gate or (gate.attempt or 1) ~= attempt then return {-1} end
local handling = handling_of(stored[3], attempt)
if stored[2] then
  local given = handling.given or {}
  return {0, stored[2], given.by or '', given.at_ms or 0}
end
local now_ms = time_ms()

-- Of a sorted set by time: what has ended goes, and the key with its last entry.
local function keep_until(key, until_ms)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
  redis.call('ZADD', key, until_ms, name)
  redis.call('PEXPIREAT', key, string.format('%.0f', redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]))
end

local function add_entry(before)
  local text = cjson.decode(entry)
  text.before = before
  add_to_audit(audit, cjson.encode(text), keep_ms)
end

local function store(what, before)
  redis.call('HSET', gates, seq .. ':handling', cjson.encode(handling))
  add_entry(before)
  notify(events, what, {seq = tonumber(seq), node = gate.node, by = by, person = person})
end

if op == 'snooze' then
  local was = tonumber(redis.call('ZSCORE', snoozed, name) or 0)
  local is_later = until_ms > now_ms
  if is_later then keep_until(snoozed, until_ms) else redis.call('ZREM', snoozed, name) end
  if was ~= until_ms then add_entry(was > now_ms and {until_ms = was} or nil) end
  return {1, is_later and until_ms or 0}
end

if op == 'comment' then
  local comments = handling.comments or {}
  for _, each in ipairs(comments) do
    if each.person == person and each.text == comment then return {1, 0} end
  end
  if #comments >= most then return {-6} end
  comments[#comments + 1] = {person = person, by = by, at_ms = now_ms, text = comment}
  handling.comments = comments
  redis.call('HSET', gates, seq .. ':handling', cjson.encode(handling))
  redis.call('XADD', inbox, '*', 't', 'commented', 'run', string.match(name, '^(.+)/'), 'seq', seq, 'attempt', attempt,
    'text', comment, 'by', by)
  notify(events, 'gate_commented', {seq = tonumber(seq), node = gate.node, by = by, person = person, text = comment})
  return {1, 0}
end

local other = not take_over and claim_of_another(handling, person, now_ms)
local claim = handling.claim and handling.claim.until_ms > now_ms and handling.claim or nil

if op == 'claim' then
  local why = refusal(gate, person, role)
  if why then return {-2, why} end
  if other then return {-5, other.person, other.at_ms, other.until_ms} end
  local is_mine = claim and claim.person == person
  if is_mine and claim.token == token then return {1, claim.until_ms} end
  handling.claim = {
    person = person, by = by, at_ms = is_mine and claim.at_ms or now_ms, until_ms = now_ms + for_ms, token = token,
  }
  keep_until(claimed, now_ms + for_ms)
  if is_mine then
    redis.call('HSET', gates, seq .. ':handling', cjson.encode(handling))
  else
    store('gate_claimed', claim and {claimed_by = claim.person})
  end
  return {1, now_ms + for_ms}
end

if op == 'release' then
  if other then return {-5, other.person, other.at_ms, other.until_ms} end
  if claim then
    handling.claim = nil
    redis.call('ZREM', claimed, name)
    store('gate_released', {claimed_by = claim.person})
  end
  return {1, 0}
end

-- assign
local why = assignee ~= '' and refusal(gate, assignee, role)
if why then return {-2, why} end
local was = handling.assigned and handling.assigned.person or ''
if was ~= assignee then
  handling.assigned = assignee ~= '' and {person = assignee, by = by, at_ms = now_ms} or nil
  store('gate_assigned', was ~= '' and {assigned_to = was} or nil)
end
return {1, 0}
