-- list_run: bring what lists one run up to date: of a run of an earlier release, of one whose commit an earlier release
-- made, and of one that is gone.
--
-- KEYS[1] run      HASH  slp:{p07}:run:<run>
-- KEYS[2] cards    HASH  slp:{p07}:lists; the sets are named after it
-- ARGV[1] run_id   str
-- ARGV[2] version  int   the version of the run that the card describes; -1: the run does not exist
-- ARGV[3] card     JSON  runs/cards.py; '' if it does not exist
--
-- Returns  1  it is listed like this now
--          0  it was before; or the run has gone on, or is there again: its commit has listed it, or the next look will.
--             Nothing changed. Calling twice is safe.
-- shared: lists
local run, cards = KEYS[1], KEYS[2]
local run_id, version, card = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local kept = redis.call('HMGET', run, 'version', 'created_ms', 'cost_usd')
if (tonumber(kept[1]) or -1) ~= version then return 0 end
return list_run(cards, run_id, card ~= '' and card_with(card, kept[2] or 0, kept[3]) or '') and 1 or 0
