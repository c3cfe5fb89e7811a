-- handling: what people have done with an open question, and who may. A script with the line `-- shared: handling` has
-- this text there.

local RANKS = {viewer = 0, approver = 1, operator = 2, admin = 3}

-- The handling that is stored for this attempt of a visit; that of an earlier attempt does not count.
local function handling_of(text, attempt)
  local found = text and cjson.decode(text)
  if found and found.attempt == attempt then return found end
  return {attempt = attempt}
end

local function is_listed(names, name)
  for _, each in ipairs(names or {}) do
    if each == name then return true end
  end
  return false
end

-- Why a person may not answer: 'author' or 'people'. nil: the person may.
local function refusal(gate, person, role)
  if gate.author and gate.author == person then return 'author' end
  local rules = gate.rules or {}
  local names = rules.assignees
  if not names and not rules.role then return nil end
  if is_listed(names, person) then return nil end
  if rules.role and (RANKS[role] or -1) >= (RANKS[rules.role] or 99) then return nil end
  return 'people'
end

-- The claim of another person that has not ended.
local function claim_of_another(handling, person, now_ms)
  local claim = handling.claim
  if claim and claim.until_ms > now_ms and claim.person ~= person then return claim end
  return nil
end

local function time_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Let watchers of the run know.
local function notify(events, type, data)
  redis.call('XADD', events, 'MAXLEN', '~', 1000, '*', 'e', cjson.encode({{type, data}}))
end
