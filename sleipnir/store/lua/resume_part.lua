-- resume_part: let a part of a held deployment, or of a held namespace, go on in one partition.
--
-- KEYS[1] paused  STRING  slp:{p07}:paused
-- KEYS[2] holds   HASH    slp:{p07}:holds
-- KEYS[3] audit   STREAM  slp:{p07}:audit
-- ARGV[1] scope       str    a namespace; '*' for the deployment
-- ARGV[2] agents      JSON   a list of names, which are added to those that go on already
-- ARGV[3] rate        float  runs a second; '' leaves it as it is
-- ARGV[4] everything  int    1: all of it goes on, and a scheduler ends the hold (end_hold.lua)
-- ARGV[5] at_ms       int    the time of the request, the same in all partitions
-- ARGV[6] by          str    the actor
-- ARGV[7] entry       JSON   of the audit, access/audit.py; '' for none
-- ARGV[8] keep_ms     int    how long entries are kept
--
-- Returns  1  it goes on
--          0  the scope is not held: nothing changed
-- Calling twice is safe: it asks for the same again.
-- shared: audit
local paused, holds, audit = KEYS[1], KEYS[2], KEYS[3]
local scope, agents, rate, everything, at_ms, by, entry, keep_ms = unpack(ARGV)

if scope == '*' then
  if redis.call('EXISTS', paused) == 0 then return 0 end
elseif redis.call('HEXISTS', holds, 'hold:' .. scope) == 0 then
  return 0
end
local text = redis.call('HGET', holds, 'resumption:' .. scope)
local is_json, found = pcall(cjson.decode, text or '{}')
if not is_json or type(found) ~= 'table' then found = {} end
local names, known = {}, {}
for _, list in ipairs({found.agents or {}, cjson.decode(agents)}) do
  for _, name in ipairs(list) do
    if not known[name] then names[#names + 1] = name end
    known[name] = true
  end
end
local after = {at_ms = tonumber(at_ms), by = by, v = 1, paced_ms = found.paced_ms, rate = found.rate}
if #names > 0 then after.agents = names end  -- an empty list would be stored as an object
if rate ~= '' then
  after.paced_ms = found.rate and found.paced_ms or tonumber(at_ms)
  after.rate = tonumber(rate)
end
after.everything = everything == '1' or found.everything == true
redis.call('HSET', holds, 'resumption:' .. scope, cjson.encode(after))
if entry ~= '' then add_to_audit(audit, entry, tonumber(keep_ms)) end
return 1
