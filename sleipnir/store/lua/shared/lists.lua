-- What lists runs: sorted sets of a partition, by the time of the submission of each run, and for each run its card,
-- which says what it is listed under (runs/cards.py has its fields). `cards` is the hash slp:{p07}:lists.

-- The names of the sets that list a run with this card.
local function sets_of(card)
  local of, status = (card.ns or 'default') .. ':', string.match(card.s, '^[^:]*')
  local names = {
    of .. 'is:' .. (card.k or 'run') .. ':' .. card.s, of .. 'agent:' .. status .. ':' .. card.a,
    of .. 'version:' .. card.d,
  }
  for key, value in pairs(card.t or {}) do names[#names + 1] = of .. 'tag:' .. key .. '=' .. value end
  if card.b then names[#names + 1] = of .. 'batch:' .. card.b end
  if card.h then names[#names + 1] = of .. 'thread:' .. card.h end
  if card.p then names[#names + 1] = of .. 'parent:' .. card.p end
  if card.f then
    names[#names + 1] = of .. 'failure:' .. card.f
    if card.n then names[#names + 1] = of .. 'node:' .. card.n end
  end
  return names
end

-- One failed run more (`by` 1) or less (-1) of its group of failures.
local function count_failure(cards, card, by)
  if not (card and card.f) then return end
  local groups, name = cards .. ':' .. (card.ns or 'default') .. ':failures', card.f .. ':' .. card.d
  local known = redis.call('HGET', groups, name)
  local group = known and cjson.decode(known)
    or {agent = card.a, version = card.d, node = card.n, count = 0, first_ms = card.e,
        message = card.f == 'other' and 'other messages' or card.m}
  group.count = group.count + by
  if group.count <= 0 then
    redis.call('HDEL', groups, name)
    return
  end
  if by > 0 then
    group.first_ms = math.min(group.first_ms, card.e)
    group.last_ms = math.max(group.last_ms or 0, card.e)
  end
  redis.call('HSET', groups, name, cjson.encode(group))
end

-- List a run as its new card says, and no longer as its last one did. '': the run is gone, and listed nowhere. Returns
-- whether that changes anything.
local MOST_FAILURES = 200  -- groups of failures of a namespace in a partition; others are one group of each version
local function list_run(cards, run_id, text)
  local last = redis.call('HGET', cards, run_id)
  if (last or '') == text then return false end
  local was, is = last and cjson.decode(last), text ~= '' and cjson.decode(text)
  if is and is.f then
    local groups = cards .. ':' .. (is.ns or 'default') .. ':failures'
    if redis.call('HLEN', groups) >= MOST_FAILURES and redis.call('HEXISTS', groups, is.f .. ':' .. is.d) == 0 then
      is.f = 'other'
      text = cjson.encode(is)
    end
  end
  local before, stays = {}, {}
  for _, name in ipairs(was and sets_of(was) or {}) do before[name] = was.c end
  for _, name in ipairs(is and sets_of(is) or {}) do
    stays[name] = true
    if before[name] ~= is.c then redis.call('ZADD', cards .. ':' .. name, is.c, run_id) end
  end
  for name in pairs(before) do
    if not stays[name] then redis.call('ZREM', cards .. ':' .. name, run_id) end
  end
  count_failure(cards, was, -1)
  count_failure(cards, is, 1)
  if is then redis.call('HSET', cards, run_id, text) else redis.call('HDEL', cards, run_id) end
  return true
end

-- A card with the time of the submission, and with the cost so far, if there is one.
local function card_with(text, created_ms, cost_usd)
  local cost = cost_usd and ',"u":' .. string.format('%.8f', cost_usd) or ''
  return string.format('%s,"c":%s%s}', string.sub(text, 1, -2), created_ms, cost)
end
