"""Every key in Redis, one function each, with its type, its fields and how it dies.

All keys of a run and of its partition share the hash tag `{pNN}`, so a Lua script may touch them together on a
cluster. Times are milliseconds since the epoch by Redis' clock. JSON values carry `v` where a release may differ.

Lifetimes: "run" means that the last commit of the run sets an expiry of `retention` on it, together with all other
keys of the run; an unfinished run never expires. "partition" and "fleet" keys hold only what is live.
"""

from __future__ import annotations

import binascii
import hashlib
from dataclasses import dataclass

from sleipnir.messages import BATCH_PRIORITY
from sleipnir.runs.run import RunSpec
from sleipnir.runs.sessions import SessionName


@dataclass(frozen=True)
class Keys:
    """The names under one prefix. `partitions` is fixed for the life of a deployment."""

    prefix: str = "slp"
    partitions: int = 16

    def partition_of(self, run_id: str) -> int:
        """CRC16 (XMODEM, as Redis Cluster uses) of the run id, modulo the number of partitions."""
        return binascii.crc_hqx(run_id.encode(), 0) % self.partitions

    def of_run(self, run_id: str) -> RunKeys:
        return RunKeys(f"{self._tag(self.partition_of(run_id))}:run:{run_id}")

    def of_partition(self, partition: int) -> PartitionKeys:
        return PartitionKeys(self._tag(partition))

    def of_session(self, name: SessionName) -> SessionKeys:
        """A session's runs live in its partition, so that one commit ends a run and adds to the session."""
        return SessionKeys(f"{self._tag(self.partition_of(str(name)))}:session:{name}")

    def of_session_of(self, spec: RunSpec) -> SessionKeys | None:
        """Of the session that a run is in."""
        return None if spec.session is None else self.of_session(SessionName(spec.agent, spec.session))

    def of_batch(self, batch: str) -> BatchKeys:
        """All batches live in the first partition: its owner shares the fleet among them."""
        return BatchKeys(f"{self._tag(0)}:batch:{batch}")

    def of_slots(self, agent: str, key: str) -> SlotKeys:
        """Of the slots that runs of an agent share whose key is this."""
        return self.of_slot_set(hashlib.sha256(f"{agent}\n{key}".encode()).hexdigest()[:24])

    def of_slot_set(self, digest: str) -> SlotKeys:
        """The same, by the name under which its partition knows it."""
        partition = self.partition_of(digest)
        return SlotKeys(f"{self._tag(partition)}:slots:{digest}", digest, partition)

    def of_limit(self, limit: str) -> LimitKeys:
        """All limits share a hash tag: one call may have to pass several at once."""
        return LimitKeys(f"{self.prefix}:{{limits}}:limit:{limit}")

    def _tag(self, partition: int) -> str:
        return f"{self.prefix}:{{p{partition:02d}}}"

    @property
    def meta(self) -> str:
        """HASH partitions, schema. Never dies: it says how this Redis is laid out."""
        return f"{self.prefix}:meta"

    @property
    def generation(self) -> str:
        """HASH id, data, since_ms, why, pulse, pulse_ms, steady_ms, server, stopped (pulse.lua,
        store/generations.py): the life of this data set since Redis last restarted, failed over, was restored or had
        its clock stepped. Never dies."""
        return f"{self.prefix}:generation"

    @property
    def schedulers(self) -> str:
        """HASH instance -> JSON {seen_ms, partitions, host, pid}. The janitor drops silent ones."""
        return f"{self.prefix}:schedulers"

    @property
    def instances(self) -> str:
        """ZSET scheduler instance by the time until which it counts as alive, for sharing the partitions. Each renews
        its own; any removes those that are silent."""
        return f"{self.prefix}:instances"

    @property
    def workers(self) -> str:
        """HASH worker name -> JSON views.WorkerInfo. The janitor drops silent ones."""
        return f"{self.prefix}:workers"

    @property
    def bundles(self) -> str:
        """ZSET digest by the time of its last submit. The janitor drops a bundle that no kept run uses."""
        return f"{self.prefix}:bundles"

    def bundle(self, digest: str) -> str:
        """STRING the packed agent folder. Dies with its entry in `bundles`."""
        return f"{self.prefix}:bundle:{digest}"

    def build(self, base: str) -> str:
        """HASH token, who, since_ms: who builds a knowledge base (knowledge.files.lease_name) now. Dies with the lease,
        unless its holder renews it."""
        return f"{self.prefix}:knowledge:build:{base}"

    @property
    def shelf(self) -> str:
        """HASH digest -> JSON {v, agent, node, bytes_, shelf, at_ms} of the knowledge bases that are shared. An entry
        lives until its base is removed."""
        return f"{self.prefix}:knowledge:shelf"

    @property
    def bases_used(self) -> str:
        """ZSET digest by the time when a submit last asked whether its base is shared. An entry dies with the base's in
        the list, or, if it is in none, when `gc` finds it old."""
        return f"{self.prefix}:knowledge:used"

    @property
    def broker_prefix(self) -> str:
        """What Celery puts before its own keys: a queue's list is `<prefix>:broker:<queue>`, that of batches as
        `line_of` says."""
        return f"{self.prefix}:broker:"


@dataclass(frozen=True)
class PartitionKeys:
    """What a partition holds for all of its runs."""

    tag: str

    @property
    def owner(self) -> str:
        """HASH instance, epoch, until_ms, generation: the scheduler that may commit here. Never dies; the epoch only
        grows."""
        return f"{self.tag}:owner"

    @property
    def inbox(self) -> str:
        """STREAM everything that happened to runs and is not yet applied: t (submitted, result, answered, cancelled,
        retried, paused, resumed, lease_lost, timer, child_ended, child_gone, told), run, and by type seq, attempt, h,
        text, by, reason, owner, worker, name, child, status, error, usage, failed_visits, what, data, keeps,
        fresh_children.
        An entry's commit deletes it."""
        return f"{self.tag}:inbox"

    @property
    def parked(self) -> str:
        """HASH run id -> JSON (runs.Parked) of runs that are set aside, "?" -> the same of entries without a run. Their
        entries stay in the inbox. The owner removes a field when an entry of the run was applied, or none is left."""
        return f"{self.tag}:parked"

    @property
    def outbox(self) -> str:
        """ZSET `run/seq/attempt` of visits that nobody has claimed, by the time at which the outbox looks at them next;
        the fraction says how long before that they were published (store/partitions.py)."""
        return f"{self.tag}:outbox"

    @property
    def effects(self) -> str:
        """STREAM run, e (JSON, transitions.Effect): what commits owe to other runs, oldest first. The owner of the
        partition delivers an entry, and deletes it."""
        return f"{self.tag}:effects"

    @property
    def dead_letters(self) -> str:
        """STREAM run, e, and reason, was (its id among the effects): effects that cannot be delivered, at most
        MOST_DEAD_LETTERS. An entry lives until a person has it delivered again or removes it."""
        return f"{self.tag}:dead"

    @property
    def leases(self) -> str:
        """ZSET `run/seq/attempt` of claimed visits, by the time their lease ends. A heartbeat moves it on."""
        return f"{self.tag}:leases"

    @property
    def late(self) -> str:
        """STRING how many results came too late and were refused, since somebody counted them elsewhere. The owner of
        the partition takes it away when it is asked for metrics."""
        return f"{self.tag}:late"

    @property
    def timers(self) -> str:
        """ZSET `run/name` by the time it is due."""
        return f"{self.tag}:timers"

    @property
    def resumed(self) -> str:
        """HASH by and at_ms of the last time that the deployment was let go on. Stays."""
        return f"{self.tag}:resumed"

    @property
    def paused(self) -> str:
        """STRING JSON (run.Hold) while the deployment is held: no visit is claimed. Gone once it is resumed."""
        return f"{self.tag}:paused"

    @property
    def gates(self) -> str:
        """ZSET `run/seq` of open questions, by the time they were asked."""
        return f"{self.tag}:gates"

    @property
    def runs(self) -> str:
        """ZSET run id by the time of its submission, for listing. The janitor drops expired runs."""
        return f"{self.tag}:runs"

    @property
    def sessions(self) -> str:
        """ZSET `agent/name` of sessions by the time of their last use. Temporary sessions are not in it."""
        return f"{self.tag}:sessions"

    @property
    def ended(self) -> str:
        """STREAM run: the last 10,000 or so runs that ended, so that one reader can wait for thousands. Bounded."""
        return f"{self.tag}:ended"

    @property
    def slots(self) -> str:
        """ZSET digest of a set of slots (SlotKeys) by the time when its owner looks at it next. An entry dies with its
        set."""
        return f"{self.tag}:slots"

    @property
    def batches(self) -> str:
        """ZSET batch id by the time it began, in the first partition only. The janitor drops expired ones."""
        return f"{self.tag}:batches"

    @property
    def open_batches(self) -> str:
        """SET batch id, in the first partition only: those that are not over."""
        return f"{self.tag}:batches:open"

    @property
    def changed_batches(self) -> str:
        """ZSET batch id by the number of its last change, in the first partition only, so that admission reads what has
        changed. The member '' has the number of the last change of all, and never dies; the janitor drops those of
        expired batches."""
        return f"{self.tag}:batches:changed"

    @property
    def expiring(self) -> str:
        """ZSET finished run id by the time its keys expire. The janitor drops both index entries then."""
        return f"{self.tag}:expiring"

    @property
    def archived(self) -> str:
        """ZSET finished run id by the time its keys expire, instead of in `expiring` once it is archived. The janitor
        drops it then, and its index entry, unless the run was revived."""
        return f"{self.tag}:archived"


@dataclass(frozen=True)
class RunKeys:
    """What belongs to one run."""

    run: str
    """HASH created_ms, status, version (commits so far), seq (last visit), step (last journal step), started_ms,
    ended_ms, error, stopped_by (a limit, views.RunInfo), failed_visits
    (JSON, runs.FailedVisits), failed_at, last_event, paused and holds (JSON, store/holds.py,
    while a person or its parent holds it), slot (JSON, runs.Slot, while the run has one or waits), budget (JSON,
    budgets.Budget, of a run that has one), retrying (once `retry` is asked for), idle_ms, steps, arrived and tops
    (JSON, runs.RunView), tokens_in, tokens_out, model_calls, cost_usd, unpriced_calls, batch (batches.place_of, if it
    or the run at its top is a row of one), pieces (how many `live` ever had), retries (how often it went on after its
    end), end_version (version with which it ended last), parent_seq and parent_attempt (the visit that waits for it,
    where that is not the one of its spec), wishes (tokens of the last eight wishes of clients), per kind of effect and
    source partition `f:<kind>:<partition>` (the last one that was told: an older one changes nothing), and per node
    `n:<node>` (entries) and `t:<node>` (visits ended, total and longest ms). Dies: run."""

    @property
    def spec(self) -> str:
        """STRING JSON (runs.RunSpec). Apart from `run`, whose small values Redis then packs tightly. Dies: run."""
        return f"{self.run}:spec"

    @property
    def state(self) -> str:
        """HASH state key -> JSON text. Dies: run."""
        return f"{self.run}:state"

    @property
    def frontier(self) -> str:
        """HASH seq -> JSON (runs.Visit): live visits, and those that ended and wait for others. Gone once a run
        is over; of a failed one, and of a child run that was cancelled because its parent failed, what `retry`
        goes on from is kept. Dies: run."""
        return f"{self.run}:frontier"

    @property
    def claims(self) -> str:
        """HASH seq -> JSON {attempt, worker, token, started_ms, delivered, lost} of the last claim of a live visit.
        A closed visit's field goes with it."""
        return f"{self.run}:claims"

    @property
    def journal(self) -> str:
        """LIST whose element N is step N, as lines: a JSON header (transitions.Step), then for each key written the key
        as a
        JSON string, and its JSON text. The state at step N is the fold of the elements up to N. Not a stream, which
        costs 4 kB with one entry. Dies: run."""
        return f"{self.run}:journal"

    @property
    def events(self) -> str:
        """STREAM e: JSON [[type, data], ...], the newest 1,000 entries or so: what a watcher sees. Dies: run."""
        return f"{self.run}:events"

    @property
    def live(self) -> str:
        """STREAM number, p (JSON, live.Piece): what models say, as they say it; the newest 5,000 pieces or so. `number`
        counts the pieces of the run, so that a reader sees whether one is missing. Dies five to ten minutes after its
        last piece: what was said in the end is in the state."""
        return f"{self.run}:live"

    @property
    def gates(self) -> str:
        """HASH seq -> JSON (runs.Gate) of questions, `<seq>:answer` -> text once answered. Gone after the run."""
        return f"{self.run}:gates"

    @property
    def output(self) -> str:
        """STRING the result text of a completed run. Dies: run."""
        return f"{self.run}:output"

    @property
    def children(self) -> str:
        """HASH id -> JSON {agent, seq} of the runs that this one has started, `<id>:cost` -> JSON of what each has cost
        that is counted here, by fields of `run`. Dies: run."""
        return f"{self.run}:children"

    @property
    def items(self) -> str:
        """HASH of values that belong to single visits: `<seq>.<i>`, the overlay of the i-th item of the map `seq` until
        that is done, then its result; of the i-th command of visit `seq` until the visit it asked for is over. An
        overlay is lines of a key as a JSON string, then its JSON text. And the conversations of loops, whose names are
        in planner/loops/turns.py; of a run in a session also `history`, its messages when the run was accepted, as a
        JSON list, and `said`, what the run adds to it, once its loop has ended and the run has not. Dies: run."""
        return f"{self.run}:items"

    @property
    def no_session(self) -> str:
        """Of a run without a session: a key that never exists, in place of the session's."""
        return f"{self.run}:no-session"

    @property
    def windows(self) -> str:
        """HASH state key -> JSON {base, parts}: what a key of a `dag` with a reducer is made of, while a write may
        still
        come in between (planner/folding.py). Dies: run."""
        return f"{self.run}:windows"

    def delta(self, seq: int, attempt: int) -> str:
        """HASH state key -> JSON text, delivered by a worker and not yet committed. The commit deletes it."""
        return f"{self.run}:delta:{seq}.{attempt}"


@dataclass(frozen=True)
class BatchKeys:
    """What is kept of one batch. Every key dies: `retention` after the last of its rows is over; of a batch that is not
    over, never."""

    batch: str
    """HASH spec (JSON, runs.RunSpec: that of all its runs), plan (JSON, batches.BatchPlan), created_ms, started_ms,
    ended_ms; rows by state: total, waiting, active, completed, failed, cancelled, and admitted (were under way at least
    once); sealed, paused and cancelling (1, or not there); tokens_in, tokens_out, model_calls, cost_usd and
    unpriced_calls, failed_visits of rows that are over; rev, which grows when rows are admitted or the plan changes. Of
    work that is under way: cancel_at (the next row to look at); retry (a request), retry_at, retry_rows (so many wait
    again by now). retried: `<request> <rows>` of the last 8 that are done."""

    @property
    def rows(self) -> str:
        """LIST of rows that wait, the next one first: `<row> <JSON>` (batches.row_text), of one that is to be retried
        `<row> `."""
        return f"{self.batch}:rows"

    @property
    def numbers(self) -> str:
        """HASH key of a row -> `<row> <digest of its contents>`."""
        return f"{self.batch}:numbers"

    @property
    def names(self) -> str:
        """LIST of the keys of rows, by row."""
        return f"{self.batch}:names"

    @property
    def states(self) -> str:
        """STRING of one byte per row (batches.ROW_STATES)."""
        return f"{self.batch}:states"

    @property
    def failures(self) -> str:
        """HASH row -> JSON {version (of its run, then), usage, error, text}, of rows that failed or were cancelled,
        also once they are retried; error and text (the row) where it could not become a run."""
        return f"{self.batch}:failures"

    @property
    def ends(self) -> str:
        """LIST of rows as they ended; one that was retried stands there again."""
        return f"{self.batch}:ends"

    def all(self) -> dict[str, str]:
        return {
            "batch": self.batch, "rows": self.rows, "numbers": self.numbers, "names": self.names,
            "states": self.states, "failures": self.failures, "ends": self.ends,
        }  # fmt: skip


@dataclass(frozen=True)
class SlotKeys:
    """The slots that runs of one agent with the same key share. Every key but `known` dies with the last run that has
    one or waits for one."""

    tag: str
    digest: str
    partition: int

    @property
    def limit(self) -> str:
        """STRING how many runs may have a slot, as the run has said that asked last."""
        return f"{self.tag}:limit"

    @property
    def holders(self) -> str:
        """ZSET `run/ticket` (runs.Slot) by the time when it was seen last that the run needs its slot."""
        return f"{self.tag}:holders"

    @property
    def waiters(self) -> str:
        """ZSET `run/ticket` by the time of its arrival in microseconds, or a little later: no two are the same."""
        return f"{self.tag}:waiters"

    @property
    def known(self) -> str:
        """HASH source partition -> stream id of the last effect that asked for a slot or freed one. Lives for an hour
        after the last change (slots.KNOWN_MS)."""
        return f"{self.tag}:known"


@dataclass(frozen=True)
class SessionKeys:
    """What is kept of one session of an agent. Lives until it is removed; a temporary one dies a day after its last
    run (sessions.TEMPORARY_MS), and not while it has one."""

    session: str
    """HASH run: the run accepted last; busy: 1 while that run is not over; created_ms, used_ms; dropped: older
    messages that were too many; instructions: the
    dynamic ones of the run that completed last, as JSON text, instructions_of: what they were made of
    (sessions.instructions_of)."""

    @property
    def messages(self) -> str:
        """LIST of messages as JSON, oldest first."""
        return f"{self.session}:messages"


@dataclass(frozen=True)
class LimitKeys:
    """What is known of one limit of models. Every key dies when no call has met the limit for two hours."""

    tag: str

    @property
    def window(self) -> str:
        """HASH r<slice>, t<slice>: calls and tokens counted in a slice of time (its number: ms since the epoch by the
        length of a slice), `requests` and `tokens`: their sums over the window up to `slice`, the last one counted in;
        cool_ms: nothing is granted until then; took_ms: how long a call holds its permit on average; ticket: of the
        next in line; h<holder>: `slice:tokens:ms` of the grant of a permit that is held."""
        return f"{self.tag}:window"

    @property
    def held(self) -> str:
        """ZSET holder of a permit by the time its lease ends."""
        return f"{self.tag}:held"

    @property
    def line(self) -> str:
        """ZSET caller that waits, by its ticket: the sum of the tokens that those before it have asked for."""
        return f"{self.tag}:line"

    @property
    def due(self) -> str:
        """ZSET caller in `line` by the time it was told to come back."""
        return f"{self.tag}:due"

    @property
    def late(self) -> str:
        """ZSET caller that did not come in time, by its ticket: it holds back nobody, and goes first if it comes."""
        return f"{self.tag}:late"

    def all(self) -> tuple[str, str, str, str, str]:
        """In the order that limit_take.lua has them."""
        return self.window, self.held, self.line, self.due, self.late


def line_of(queue: str, batch: str) -> str:
    """The name of a queue's list of messages, after `broker_prefix`. Those of batches have a list of their own, as
    kombu names that of a lower priority: Celery takes from it when the other one is empty."""
    return f"{queue}\x06\x16{BATCH_PRIORITY}" if batch else queue


def lines_of(queue: str) -> tuple[str, str]:
    """Both of a queue's lists, the first one first."""
    return line_of(queue, ""), line_of(queue, "any")


def member(run_id: str, seq: int, attempt: int) -> str:
    """How outbox and leases name a visit's attempt."""
    return f"{run_id}/{seq}/{attempt}"


def member_of(task_id: str) -> str:
    """The member of the visit's attempt that a Celery task runs: its id is `run:node:seq:attempt`."""
    run_id, _, rest = task_id.partition(":")
    _, seq, attempt = rest.rsplit(":", 2)
    return f"{run_id}/{seq}/{attempt}"


def cost_field(child: str) -> str:
    """Where among a run's children is what one of them has cost (commit.lua has it too)."""
    return f"{child}:cost"


def parse_member(text: str) -> tuple[str, int, int]:
    run_id, seq, attempt = text.rsplit("/", 2)
    return run_id, int(seq), int(attempt)


def is_member(text: str) -> bool:
    """Whether `parse_member` can read this: an index may hold what another program has written."""
    try:
        run_id, _, _ = parse_member(text)
        return bool(run_id.encode())
    except ValueError:
        return False


def session_keys(keys: RunKeys, session: SessionKeys | None) -> dict[str, str]:
    """The session's part of a script's keys; of a run without one, the names of nothing."""
    if session is None:
        return {"session": keys.no_session, "messages": keys.no_session}
    return {"session": session.session, "messages": session.messages}
