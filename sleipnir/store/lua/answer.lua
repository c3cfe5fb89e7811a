-- answer: accept a person's answer to an open gate, once; or count it, if several people must give the same one.
--
-- KEYS[1] gates   HASH    slp:{p07}:run:<run>:gates
-- KEYS[2] inbox   STREAM  slp:{p07}:inbox
-- KEYS[3] run     HASH    slp:{p07}:run:<run>
-- KEYS[4] events  STREAM  slp:{p07}:run:<run>:events
-- KEYS[5] audit   STREAM  slp:{p07}:audit
-- ARGV[1] run_id  str
-- ARGV[2] seq     int
-- ARGV[3] text    str     JSON text of the answer; opaque here
-- ARGV[4] attempt int     identifies the question: a visit whose worker is lost again asks again
-- ARGV[5] by      str     who answers, and from where
-- ARGV[6] token   str     of this answer, as in tell.lua
-- ARGV[7] person  str     who answers, by name; '' for nobody that is known
-- ARGV[8] role    str     the access role of that person; '' for none
-- ARGV[9] comment str     '' for none
-- ARGV[10] most   int     voices that a gate keeps
-- ARGV[11] entry  JSON    access/audit.py: of a voice that does not answer the gate; opaque here
-- ARGV[12] keep_ms int    how long that entry is kept
--
-- Returns  {1}               accepted, now or by an earlier call with this token, also if the gate is closed since
--          {2, n, quorum}    counted: n people have given this answer, and the gate stays open
--          {0, text, by, at_ms}  answered before, with that text; nothing changed. `by` is '' for an older release
--          {-1}              no such open gate
--          {-2, why}         this person may not answer: 'author' or 'people'
--          {-3}              a comment is required
--          {-4}              the gate has as many voices as it keeps
--          {-5, person, at_ms, until_ms}  another person has claimed the gate then, until then
-- The rules of the gate are checked here, so that no way in can pass by them. A later answer of the
-- same person replaces the earlier one; people who do not agree leave the gate open. Calling twice is safe.
-- shared: audit
-- shared: handling
local gates, inbox, run, events, audit = unpack(KEYS)
local run_id, seq, text, attempt, by, token = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local person, role, comment, most, entry, keep_ms = unpack(ARGV, 7, 12)
local WISHES_BYTES = 96  -- eight tokens, as in tell.lua
local stored = redis.call('HMGET', gates, seq, seq .. ':answer', seq .. ':handling')
local gate = stored[1] and cjson.decode(stored[1])
local rules = gate and gate.rules or {}
local quorum = rules.quorum or 1
local handling = handling_of(stored[3], attempt)
local function count()
  local same = 0
  for _, voice in ipairs(handling.voices or {}) do
    if voice.answer == text then same = same + 1 end
  end
  return same
end

local wishes = redis.call('HGET', run, 'wishes') or ''
if string.find(wishes, token, 1, true) then
  if gate and not stored[2] and quorum > 1 then return {2, count(), quorum} end
  return {1}
end
if not gate or (gate.attempt or 1) ~= attempt then return {-1} end
local why = refusal(gate, person, role)
if why then return {-2, why} end
if stored[2] then
  local given = handling.given or {}
  return {0, stored[2], given.by or '', given.at_ms or 0}
end
local now_ms = time_ms()
local other = claim_of_another(handling, person, now_ms)
if other then return {-5, other.person, other.at_ms, other.until_ms} end
if rules.comment and comment == '' then return {-3} end

local function remember() redis.call('HSET', run, 'wishes', string.sub(wishes .. token, -WISHES_BYTES)) end
if quorum > 1 then
  local voices = {}
  for _, voice in ipairs(handling.voices or {}) do
    if voice.person ~= person then voices[#voices + 1] = voice end
  end
  if #voices >= tonumber(most) then return {-4} end
  voices[#voices + 1] = {person = person, answer = text, by = by, at_ms = now_ms, comment = comment ~= '' and comment or nil}
  handling.voices = voices
  handling.claim = nil  -- the person's part is done
  local same = count()
  if same < quorum then
    remember()
    redis.call('HSET', gates, seq .. ':handling', cjson.encode(handling))
    add_to_audit(audit, entry, tonumber(keep_ms))
    notify(events, 'gate_voiced', {seq = tonumber(seq), node = gate.node, by = by, voices = same, quorum = quorum})
    return {2, same, quorum}
  end
end
remember()
handling.given = {by = by, at_ms = now_ms}
redis.call('HSET', gates, seq .. ':answer', text, seq .. ':handling', cjson.encode(handling))
local more = {}
if gate.rules or gate.author then more = {'checked', '1'} end
if comment ~= '' then
  more[#more + 1] = 'reason'
  more[#more + 1] = comment
end
if quorum > 1 then
  more[#more + 1] = 'voices'
  more[#more + 1] = cjson.encode(handling.voices)
end
redis.call('XADD', inbox, '*', 't', 'answered', 'run', run_id, 'seq', seq, 'attempt', attempt, 'text', text, 'by', by,
  unpack(more))
return {1}
