-- holds: is a run held with its namespace or its deployment? A script with the line `-- shared: holds` has this text
-- there. The rules are those of runs/deployment_holds.py.

local HOLDS_READ = 4  -- the greatest version of a record that this release reads, as in decoding.py

local function may_go_on(holds, scope, hold, mark, run)
  local text = redis.call('HGET', holds, 'resumption:' .. scope)
  if not text then return false end
  local is_json, found = pcall(cjson.decode, text)
  if not is_json or type(found) ~= 'table' or (tonumber(found.v) or 1) > HOLDS_READ then return false end
  if found.everything == true then return true end
  for _, agent in ipairs(type(found.agents) == 'table' and found.agents or {}) do
    if agent == run.agent then return true end
  end
  if type(found.rate) ~= 'number' then return false end
  local is_hold, about = pcall(cjson.decode, hold)
  if is_hold and type(about) == 'table' and mark == string.format('%.0f', tonumber(about.at_ms) or -1) then return true end
  return run.is_child and run.created_ms >= (tonumber(found.paced_ms) or math.huge)
end

-- Whether no visit of a run may start. `run` is its hash, `submitted` the text of its spec.
local function is_held(run, submitted, paused, holds)
  if redis.call('EXISTS', paused, holds) == 0 then return false end
  local spec = cjson.decode(submitted)
  local about = redis.call('HMGET', run, 'created_ms', 'resumed_all', 'resumed_ns')
  local facts = {
    agent = spec.agent, created_ms = tonumber(about[1]) or 0,
    is_child = type(spec.parent) == 'string',
  }
  local all = redis.call('GET', paused)
  if all and not may_go_on(holds, '*', all, about[2], facts) then return true end
  local namespace = type(spec.namespace) == 'string' and spec.namespace or 'default'
  local own = redis.call('HGET', holds, 'hold:' .. namespace)
  return own and not may_go_on(holds, namespace, own, about[3], facts) or false
end
