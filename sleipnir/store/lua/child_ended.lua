-- child_ended: notify a run of the end of one of its children, or of its total cost.
--
-- KEYS[1] run      HASH    slp:{p07}:run:<run>, the parent's
-- KEYS[2] inbox    STREAM  slp:{p07}:inbox
-- KEYS[3] delta    HASH    ...:delta:<seq>.<attempt> of the visit that waits
-- ARGV[1] run_id   str
-- ARGV[2] seq      int
-- ARGV[3] attempt  int
-- ARGV[4] child    str
-- ARGV[5] status   str     completed, failed, cancelled, or refused: it was never started
-- ARGV[6] error    str     '' for none
-- ARGV[7] usage    JSON    its total usage, or ''
-- ARGV[8] output   JSON    the text of its result, or ''; opaque here
-- ARGV[9] failed   JSON    its failed visits (runs.FailedVisits), or ''
-- ARGV[10] failure JSON    why it failed (visits.Failure), or ''
-- ARGV[11] end     JSON    its end, for an agent node that maps it (runs/child_run.py), or ''; opaque here
--
-- Returns  1  notified
--          0  the parent does not exist any more
-- Calling twice is safe: the planner ignores the second entry, and its data is deleted then.
local run, inbox, delta = unpack(KEYS)
local run_id, seq, attempt, child, status, error_, usage, output, failed, failure, end_ = unpack(ARGV)

if redis.call('EXISTS', run) == 0 then return 0 end
if output ~= '' then redis.call('HSET', delta, '_result', output) end
if end_ ~= '' then redis.call('HSET', delta, '_child', end_) end
local entry = {'t', 'child_ended', 'run', run_id, 'seq', seq, 'attempt', attempt, 'child', child,
  'status', status, 'error', error_, 'usage', usage, 'failed_visits', failed}
if failure ~= '' then entry[#entry + 1], entry[#entry + 2] = 'failure', failure end
if end_ ~= '' then entry[#entry + 1], entry[#entry + 2] = 'end_bytes', #end_ end
redis.call('XADD', inbox, '*', unpack(entry))
return 1
