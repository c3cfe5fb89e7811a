"""Every key in Redis, one function each, with its type, its fields and its lifetime.

All keys of a run and of its partition share the hash tag `{pNN}`, so that a Lua script can use them together on a
cluster. Times are milliseconds since the epoch by Redis' clock. JSON values carry `v` if releases may differ.

Lifetimes: "run" means that the last commit of the run sets an expiry of `retention` on it, together with all other
keys of the run; an unfinished run never expires. "partition" and "fleet" keys hold only live data.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from sleipnir.messages import BATCH_PRIORITY
from sleipnir.runs.run import RunSpec
from sleipnir.runs.sessions import SessionName
from sleipnir.runs.shared_values import SharedName
from sleipnir.runs.threads import ThreadName
from sleipnir.store.layout import meta_key

FORKS_PAGE = 100
"""The forks of a run that one field lists."""


@dataclass(frozen=True)
class Keys:
    """The names under one prefix. The number of partitions is fixed for the life of a deployment (layout.py); without
    it, nothing that is in the partition of a name can be asked for. `of_cluster`: they are in a Redis Cluster, where
    each partition has a generation of its own."""

    prefix: str = "slp"
    known_partitions: int | None = None
    of_cluster: bool = False

    @property
    def partitions(self) -> int:
        if self.known_partitions is None:
            raise LookupError("the number of partitions is known to an opened Store only")
        return self.known_partitions

    def partition_of(self, run_id: str) -> int:
        """CRC16 (XMODEM, as Redis Cluster uses) of the run id, modulo the number of partitions."""
        return binascii.crc_hqx(run_id.encode(), 0) % self.partitions

    def of_run(self, run_id: str) -> RunKeys:
        return RunKeys(f"{self._tag(self.partition_of(run_id))}:run:{run_id}")

    def of_partition(self, partition: int) -> PartitionKeys:
        return PartitionKeys(self._tag(partition))

    def of_session(self, name: SessionName) -> SessionKeys:
        """A session's runs are in its partition, so that one commit ends a run and adds to the session."""
        return SessionKeys(f"{self._tag(self.partition_of(str(name)))}:session:{name}")

    def of_session_of(self, spec: RunSpec) -> SessionKeys | None:
        """The keys of the session of a run, or of its thread, which has no messages; None without either."""
        if (thread := ThreadName.of(spec)) is not None:
            return SessionKeys(self.of_thread(thread))
        return None if (session := SessionName.of(spec)) is None else self.of_session(session)

    def of_thread(self, name: ThreadName) -> str:
        """HASH run: the last run that has begun; busy: 1 while that run is unfinished; waiting: the ids of queued runs,
        in order, with spaces between; turns: how many runs it has had; created_ms, used_ms; expire_ms: how long the
        last run would have been kept outside of the thread. Lives until it is removed, and then for a minute with
        removed: the token of the removal. Its runs are in its partition. In
        other namespaces than `default` the name begins with `/namespace/`."""
        return f"{self._tag(self.partition_of(str(name)))}:thread:{name}"

    def of_shared(self, name: SharedName) -> SharedKeys:
        """The values that all runs of an agent share, or those of a user of it."""
        partition = self.partition_of(str(name))
        return SharedKeys(f"{self._tag(partition)}:values:{name}", partition)

    def of_batch(self, batch: str) -> BatchKeys:
        return BatchKeys(f"{self._tag(self.partition_of_batch(batch))}:batch:{batch}")

    def partition_of_batch(self, batch: str) -> int:
        """In a cluster that of its id: one node could not keep up with the rows of all batches. On one Redis the
        first."""
        return self.partition_of(batch) if self.of_cluster else 0

    @property
    def batch_partitions(self) -> range:
        """The partitions that may have batches."""
        return range(self.partitions if self.of_cluster else 1)

    def of_schedule(self, name: str) -> ScheduleKeys:
        """A schedule is in the partition of its name."""
        partition = self.partition_of(name)
        return ScheduleKeys(f"{self._tag(partition)}:schedule:{name}", partition)

    def of_job(self, job: str) -> JobKeys:
        """A job is in the partition of its id."""
        partition = self.partition_of(job)
        return JobKeys(f"{self._tag(partition)}:job:{job}", partition)

    def of_slots(self, agent: str, key: str) -> SlotKeys:
        """The keys of the slots that runs of an agent with this key share."""
        return self.of_slot_set(hashlib.sha256(f"{agent}\n{key}".encode()).hexdigest()[:24])

    def of_slot_set(self, digest: str) -> SlotKeys:
        """The same keys, by the digest that names the set in its partition."""
        partition = self.partition_of(digest)
        return SlotKeys(f"{self._tag(partition)}:slots:{digest}", digest, partition)

    def of_signals(self, name: str) -> SignalKeys:
        """The keys of the signals with this name, and of the visits that wait for them."""
        digest = hashlib.sha256(name.encode()).hexdigest()[:24]
        partition = self.partition_of(digest)
        return SignalKeys(f"{self._tag(partition)}:signals:{digest}", partition)

    def of_cache(self, agent: str, node: str) -> CacheKeys:
        """The cached results of a node, with a hash tag of their own."""
        return CacheKeys(
            f"{self.prefix}:{{c{hashlib.sha256(cache_name(agent, node).encode()).hexdigest()[:16]}}}:cache"
        )

    def of_limit(self, limit: str) -> LimitKeys:
        """All limits share a hash tag, because one call may need permits of several limits at once."""
        return LimitKeys(f"{self.prefix}:{{limits}}:limit:{limit}")

    @property
    def limit_changes(self) -> LimitChangeKeys:
        """In the hash tag of all limits: the script that grants a call reads them."""
        return LimitChangeKeys(f"{self.prefix}:{{limits}}")

    @property
    def access(self) -> AccessKeys:
        """All keys of users, tokens and logins share a hash tag, because one script changes several."""
        return AccessKeys(f"{self.prefix}:{{access}}")

    def _tag(self, partition: int) -> str:
        return f"{self.prefix}:{{p{partition:02d}}}"

    def _together(self, what: str) -> str:
        """The beginning of keys that are changed together: in a cluster they must share a slot."""
        return f"{self.prefix}:{{{what}}}" if self.of_cluster else self.prefix

    @property
    def meta(self) -> str:
        """HASH partitions: how many there are (layout.py). Never dies."""
        return meta_key(self.prefix)

    def generation_of(self, partition: int) -> str:
        """HASH id, data, since_ms, why, pulse, pulse_ms, steady_ms, server, stopped (pulse.lua,
        store/generations.py): the life of this data set since the last restart, fail-over, restore or clock step of
        Redis. Of a cluster's nodes, each has its own life. Never dies."""
        return f"{self._tag(partition) if self.of_cluster else self.prefix}:generation"

    def partition_of_key(self, key: str) -> int:
        """The partition whose hash tag a key has."""
        return int(key.removeprefix(f"{self.prefix}:{{p").partition("}")[0])

    @property
    def generations(self) -> Sequence[str]:
        """The keys of all generations."""
        return [self.generation_of(partition) for partition in range(self.partitions if self.of_cluster else 1)]

    @property
    def schedulers(self) -> str:
        """HASH instance -> JSON {seen_ms, partitions, host, pid}. The janitor drops silent ones."""
        return f"{self.prefix}:schedulers"

    @property
    def instances(self) -> str:
        """ZSET scheduler instance by the time until which it counts as alive, for sharing the partitions. Each instance
        renews its own entry; any instance removes silent ones."""
        return f"{self.prefix}:instances"

    @property
    def instance_changes(self) -> str:
        """STREAM instance: the last scheduler instance that came, went or released partitions; the others wait for it.
        Dies a minute after the last change."""
        return f"{self.prefix}:instances:changes"

    def throughput_minute(self, minute: int) -> str:
        """HASH scheduler instance -> JSON (runs.throughput) of what it committed in a minute since the epoch. Dies two
        hours after the last write."""
        return f"{self.prefix}:throughput:minute:{minute}"

    def throughput_hour(self, hour: int) -> str:
        """HASH scheduler instance -> JSON (runs.throughput) of what it committed in an hour since the epoch. Dies 49
        hours after the last write."""
        return f"{self.prefix}:throughput:hour:{hour}"

    @property
    def workers(self) -> str:
        """HASH worker name -> JSON views.WorkerInfo. The janitor drops silent ones."""
        return f"{self.prefix}:workers"

    @property
    def bundles(self) -> str:
        """ZSET digest by the time of its last submission. The janitor drops a bundle that no stored run uses."""
        return f"{self._together('bundles')}:bundles"

    def bundle(self, digest: str) -> str:
        """STRING the packed agent folder. Dies with its entry in `bundles`."""
        return f"{self._together('bundles')}:bundle:{digest}"

    @property
    def marked_bundles(self) -> str:
        """STRING 1: as PartitionKeys.marked, for the node that has the bundles."""
        return f"{self._together('bundles')}:marked"

    def build(self, base: str) -> str:
        """HASH token, who, since_ms: the builder of a knowledge base (knowledge.files.lease_name). Dies with the lease,
        unless its holder renews it."""
        return f"{self.prefix}:knowledge:build:{base}"

    @property
    def shelf(self) -> str:
        """HASH digest -> JSON {v, agent, node, bytes_, shelf, at_ms} of the shared knowledge bases. An entry lives
        until its base is removed."""
        return f"{self._together('knowledge')}:knowledge:shelf"

    @property
    def bases_used(self) -> str:
        """ZSET digest by the time when a submission last checked that its base is shared. An entry dies with the base's
        entry in the list, or, if it has none, when `gc` finds it old."""
        return f"{self._together('knowledge')}:knowledge:used"

    @property
    def caches(self) -> str:
        """ZSET cache_name of each node with cached results, by the time until which it may have some. An entry dies
        then: whoever reads or writes the set removes it."""
        return f"{self.prefix}:caches"

    @property
    def caches_cleared(self) -> str:
        """ZSET cache_name of an agent, or of all, whose nodes with cached results were cleared, by the time; it has no
        node then. It dies a day after the last time."""
        return f"{self.prefix}:caches:cleared"

    @property
    def broker_prefix(self) -> str:
        """The prefix of Celery's keys: a queue's list is `<prefix>:broker:<queue>`, and for batches as of `line_of`."""
        return f"{self.prefix}:broker:"


def cache_name(agent: str, node: str) -> str:
    """A node with cached results, as the member of a set."""
    return json.dumps([agent, node])


def cache_of_name(name: str) -> tuple[str, str]:
    """The agent and the node of a cache_name."""
    agent, node = json.loads(name)
    return str(agent), str(node)


@dataclass(frozen=True)
class AccessKeys:
    """The keys of users, access tokens, logins and webhooks, and of the audit of what is no run's."""

    tag: str

    @property
    def users(self) -> str:
        """HASH name -> JSON (access.records.User). Never dies."""
        return f"{self.tag}:users"

    @property
    def tokens(self) -> str:
        """HASH id -> JSON (access.records.AccessToken). A field lives until the token is revoked."""
        return f"{self.tag}:tokens"

    @property
    def webhooks(self) -> str:
        """HASH name -> JSON (webhooks.records.Webhook). A field lives until the webhook is removed. The keys of its
        deliveries are in webhook_keys.py."""
        return f"{self.tag}:webhooks"

    @property
    def discarded(self) -> str:
        """HASH `namespace fingerprint` -> JSON (run_filters.DiscardNote) of groups of failures. Dies as long after the
        last note as ended runs do."""
        return f"{self.tag}:discarded"

    def logins(self, user: str) -> str:
        """HASH SHA-256 of the secret -> JSON (access.records.Login), about MOST_LOGINS at most. Dies LOGIN_MS after the
        last one began, or when all are revoked."""
        return f"{self.tag}:logins:{user}"

    def failed(self, kind: str, name: str) -> str:
        """HASH failures, until_ms, last (login_attempt.lua) of the users or addresses (`kind`) of one bucket: there are
        65,536 of each, however many names are tried. Dies store.access.FAILED_MS after the last attempt."""
        return f"{self.tag}:failed:{kind}:{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:4]}"

    def proof(self, digest: str) -> str:
        """STRING the attempt that used a proof of a login provider, which counts once. Dies store.access.PROOF_MS
        later."""
        return f"{self.tag}:proof:{digest}"

    def made_links(self, run: str) -> str:
        """HASH SHA-256 of what was asked for -> until_ms of the signed links to the questions of a run that were made
        just now. Dies store.access.SAME_LINK_MS after the last one."""
        return f"{self.tag}:links:{run}"

    @property
    def audit(self) -> str:
        """STREAM e (JSON, access/audit.py), at most MOST_ENTRIES, each as long as the setting audit_retention_s."""
        return f"{self.tag}:audit"


@dataclass(frozen=True)
class CacheKeys:
    """The keys of the cached results of one node. All of them can be lost at any time."""

    tag: str

    def entry(self, digest: str) -> str:
        """STRING JSON (cached_results.CachedResult) of one key. Dies with its time to live."""
        return f"{self.tag}:entry:{digest}"

    def lease(self, digest: str) -> str:
        """STRING the token of the execution whose result will be that of the key. Dies with the lease, unless its
        holder renews it."""
        return f"{self.tag}:lease:{digest}"

    @property
    def index(self) -> str:
        """ZSET digest by the time its entry dies, at most as many as the setting allows. Dies with the last one."""
        return f"{self.tag}:index"

    @property
    def sizes(self) -> str:
        """HASH digest -> bytes of the entries in `index`. Dies with it."""
        return f"{self.tag}:sizes"

    @property
    def use(self) -> str:
        """HASH bytes: of all entries, epoch: a name of the time since they were cleared. Dies a day after `index`."""
        return f"{self.tag}:use"


@dataclass(frozen=True)
class PartitionKeys:
    """The keys of a partition, shared by all of its runs."""

    tag: str

    @property
    def owner(self) -> str:
        """HASH instance, epoch, until_ms, generation: the scheduler that may commit here. Never dies; the epoch only
        grows."""
        return f"{self.tag}:owner"

    @property
    def inbox(self) -> str:
        """STREAM events of runs that are not yet applied: t (submitted, forked, result, answered, cancelled,
        retried, paused, resumed, lease_lost, timer, child_ended, child_gone, told), run, and by type seq, attempt, h,
        text, by, reason, owner, worker, name, child, status, error, usage, failed_visits, failure, what, data,
        keeps, fresh_children.
        An entry's commit deletes it."""
        return f"{self.tag}:inbox"

    @property
    def parked(self) -> str:
        """HASH run id -> JSON (runs.Parked) of parked runs, "?" -> the same for entries without a run. Their entries
        stay in the inbox. The owner removes a field when an entry of the run was applied, or none is left."""
        return f"{self.tag}:parked"

    @property
    def outbox(self) -> str:
        """ZSET `run/seq/attempt` of unclaimed visits, by the time of the outbox's next check; the fraction encodes how
        long before that they were published (store/partitions/outbox.py)."""
        return f"{self.tag}:outbox"

    @property
    def effects(self) -> str:
        """STREAM run, e (JSON, transitions.Effect): effects of commits on other runs, oldest first. The owner of the
        partition delivers and deletes an entry."""
        return f"{self.tag}:effects"

    @property
    def delivered(self) -> str:
        """STREAM run, e, was (its id among the effects), to (the partition of its target) and generation (of that, when
        it was delivered): in a cluster, effects that were delivered to other partitions, for effects.KEPT_MS and the
        time for which a node does not answer, at most effects.MOST_KEPT."""
        return f"{self.tag}:delivered"

    @property
    def marked(self) -> str:
        """STRING 1: written to find out whether replicas have what was written before (store/replicas.py). Dies
        replicas.MARK_S later."""
        return f"{self.tag}:marked"

    @property
    def dead_letters(self) -> str:
        """STREAM run, e, and reason, was (its id among the effects): effects that cannot be delivered, at most
        dead_letters.MOST. An entry lives until a person redelivers or removes it."""
        return f"{self.tag}:dead"

    @property
    def leases(self) -> str:
        """ZSET `run/seq/attempt` of claimed visits, by the end of their lease. A heartbeat extends it."""
        return f"{self.tag}:leases"

    @property
    def audit(self) -> str:
        """STREAM e (JSON, access/audit.py): what people have changed of runs, with the commit of the change; at most
        MOST_ENTRIES, each as long as the setting audit_retention_s."""
        return f"{self.tag}:audit"

    @property
    def late(self) -> str:
        """STRING the number of results that were refused as late since the last read. The owner of the partition reads
        and deletes it for metrics."""
        return f"{self.tag}:late"

    @property
    def timers(self) -> str:
        """ZSET `run/name` by the time it is due."""
        return f"{self.tag}:timers"

    @property
    def resumed(self) -> str:
        """HASH by and at_ms of the last time that the deployment was resumed. Never dies."""
        return f"{self.tag}:resumed"

    @property
    def paused(self) -> str:
        """STRING JSON (run.Hold) while the deployment is held: no visit is claimed. Gone once it is resumed."""
        return f"{self.tag}:paused"

    @property
    def holds(self) -> str:
        """HASH `hold:<namespace>` -> JSON (run.Hold) while a namespace is held; `resumption:<scope>` -> JSON
        (deployment_holds.Resumption), `count:<scope>` and `walked:<scope>` while part of a held namespace, or of the
        deployment (`*`), is resumed. Gone once nothing is held."""
        return f"{self.tag}:holds"

    @property
    def gates(self) -> str:
        """ZSET `run/seq` of open questions, by the time they were asked."""
        return f"{self.tag}:gates"

    @property
    def claimed_gates(self) -> str:
        """ZSET `run/seq` of questions that somebody has claimed, by the end of the claim. Dies with the last claim."""
        return f"{self.gates}:claimed"

    def snoozed_gates(self, person: str) -> str:
        """ZSET `run/seq` of questions that a person has snoozed, by the time until when. Dies with the last of them."""
        return f"{self.gates}:snoozed:{person}"

    @property
    def runs(self) -> str:
        """ZSET run id by the time of its submission, for listing. The janitor drops expired runs."""
        return f"{self.tag}:runs"

    @property
    def cards(self) -> str:
        """HASH run id -> its card as JSON (runs/cards.py). An entry dies with that of `runs`."""
        return f"{self.tag}:lists"

    def listed(self, name: str) -> str:
        """ZSET run id by the time of its submission, of the runs whose cards say so (lua/shared/lists.lua). An entry
        dies with that of `cards`."""
        return f"{self.cards}:{name}"

    def failures(self, namespace: str) -> str:
        """HASH `fingerprint:version` -> JSON {agent, version, node, message, count, first_ms, last_ms}: the failed runs
        of a namespace in groups, about 200 at most. A group dies with the card of its last run."""
        return f"{self.cards}:{namespace}:failures"

    @property
    def all_listed(self) -> str:
        """STRING 1 once every run of `runs` has had a card (services/listing.py). Never dies."""
        return f"{self.cards}:complete"

    @property
    def sessions(self) -> str:
        """ZSET `agent/name` of sessions by the time of their last use. Temporary sessions are not in it."""
        return f"{self.tag}:sessions"

    @property
    def threads(self) -> str:
        """ZSET `agent/name` of threads by the time of their last turn. An entry dies with its thread."""
        return f"{self.tag}:threads"

    @property
    def shared(self) -> str:
        """ZSET `agent` or `agent/user` (SharedName) with shared values, by the time of the last write. An entry dies
        with the last value."""
        return f"{self.tag}:shared"

    @property
    def ended(self) -> str:
        """STREAM run: the last 10,000 or so ended runs, so that one reader can wait for thousands. Bounded."""
        return f"{self.tag}:ended"

    @property
    def slots(self) -> str:
        """ZSET digest of a set of slots (SlotKeys) by the time of its next check. An entry dies with its set."""
        return f"{self.tag}:slots"

    @property
    def waits(self) -> str:
        """ZSET name of signals that visits wait for, by the time when it is next checked whether these visits are
        there. An entry dies with the last such visit."""
        return f"{self.tag}:waits"

    @property
    def awaited(self) -> str:
        """ZSET name of signals that visits wait for, by the time since when there are such visits. An entry dies with
        that of `waits`."""
        return f"{self.tag}:awaited"

    @property
    def waiting(self) -> str:
        """STRING the number of visits that wait for signals. Dies at 0."""
        return f"{self.tag}:waiting"

    @property
    def signals(self) -> str:
        """STREAM name, id, number: the last 1,000 or so signals that were sent, for listing. Bounded."""
        return f"{self.tag}:signals"

    @property
    def schedules(self) -> str:
        """ZSET name of a schedule by the time when it is looked at next, infinity if never. An entry dies with its
        schedule."""
        return f"{self.tag}:schedules"

    @property
    def jobs(self) -> str:
        """ZSET id of a job by the time when it was submitted. The janitor drops expired ones."""
        return f"{self.tag}:jobs"

    @property
    def jobs_due(self) -> str:
        """ZSET id of a job that is not over by the time when it is looked at next."""
        return f"{self.tag}:jobs:due"

    @property
    def batches(self) -> str:
        """ZSET batch id by the time it began. The janitor drops expired ones."""
        return f"{self.tag}:batches"

    @property
    def outstanding(self) -> str:
        """HASH instance -> JSON (outstanding.PublishedCount), '' -> the time at which somebody read them last. In a
        cluster, and in the first partition alone. Dies outstanding.FORGOTTEN_MS after the last reader."""
        return f"{self.tag}:outstanding"

    @property
    def open_batches(self) -> str:
        """SET batch id: the unfinished batches."""
        return f"{self.tag}:batches:open"

    @property
    def changed_batches(self) -> str:
        """ZSET batch id by the number of its last change, so that admission reads only changed batches. The member ''
        has the number of the overall last change and never dies; the janitor drops the members of expired batches."""
        return f"{self.tag}:batches:changed"

    @property
    def expiring(self) -> str:
        """ZSET finished run id by the time its keys expire (threads.HELD_MS for the last run of a thread, which does
        not). The janitor drops both index entries then."""
        return f"{self.tag}:expiring"

    @property
    def archived(self) -> str:
        """ZSET finished run id by the time its keys expire; an archived run is here instead of in `expiring`. The
        janitor drops it then, with its index entry, unless the run was revived."""
        return f"{self.tag}:archived"


@dataclass(frozen=True)
class RunKeys:
    """The keys of one run."""

    run: str
    """HASH created_ms, status, version (commits so far), seq (last visit), step (last journal step), started_ms,
    ended_ms, error, failure (JSON, visits.Failure), stopped_by (a limit, views.RunInfo), failed_visits (JSON,
    runs.FailedVisits), failed_at, last_event, paused and holds (JSON, store/holds.py, while a person or its parent
    holds it), slot (JSON, runs.Slot, while the run has one or waits), budget (JSON, budgets.Budget, if it has one),
    retrying (after a request of `retry`), idle_ms, steps, limited_from, arrived, deferred and tops (JSON,
    runs.RunView), tokens_in, tokens_out, model_calls, cost_usd, unpriced_calls, batch (batches.place_of, if it or its
    root run is a row of one), past (JSON, runs.PastState, of a fork without a state of its own), queued (JSON,
    runs.QueuedTurn, of a queued turn of a thread), pieces (the total number in `live`), retries (how often it continued
    after its end), end_version (its version at its last end), parent_seq and parent_attempt (the visit that waits for
    it, if not the one of its spec), wishes (tokens of the last eight requests of clients), per kind of effect and
    source partition `f:<kind>:<partition>` (the last delivered one: an older one changes nothing), `cached` (visits
    with a cached result), and per node `n:<node>` (entries) and `t:<node>` (visits ended, total and longest ms, and if
    there are any, cached ones). Dies: run."""

    @property
    def spec(self) -> str:
        """STRING JSON (runs.RunSpec). Separate from `run`, so that Redis packs the small values of `run`. Dies: run."""
        return f"{self.run}:spec"

    @property
    def state(self) -> str:
        """HASH state key -> JSON text. Dies: run."""
        return f"{self.run}:state"

    @property
    def frontier(self) -> str:
        """HASH seq -> JSON (visits.Visit): live visits, and ended visits that wait for others. Deleted when the run is
        over; a failed run, and a child run that was cancelled because its parent failed, keep the visits that `retry`
        needs. Dies: run."""
        return f"{self.run}:frontier"

    @property
    def claims(self) -> str:
        """HASH seq -> JSON {attempt, worker, token, started_ms, delivered, lost} of the last claim of a live visit.
        A closed visit's field goes with it."""
        return f"{self.run}:claims"

    @property
    def journal(self) -> str:
        """LIST whose element N is step N, as lines: a JSON header (transitions.Step), then for each written key the key
        as a JSON string and its JSON text. The state at step N is the fold of the elements up to N. Not a stream, which
        needs 4 kB for one entry. Dies: run."""
        return f"{self.run}:journal"

    @property
    def events(self) -> str:
        """STREAM e: JSON [[type, data], ...], the newest 1,000 entries or so, for watchers. Dies: run."""
        return f"{self.run}:events"

    @property
    def live(self) -> str:
        """STREAM number, p (JSON, live.Piece): the live output of models; the newest 5,000 pieces or so. `number`
        counts the pieces of the run, so that a reader detects missing ones. Dies five to ten minutes after its last
        piece: the final text is in the state."""
        return f"{self.run}:live"

    def stream(self, name: str) -> str:
        """HASH place, owner, length and done (1: it has ended) of the text of a node stream (runs/node_streams.py).
        Dies `retention` after the last write."""
        return f"{self.run}:stream:{name}"

    def stream_text(self, name: str) -> str:
        """STREAM k (begin, text, end, error), o (the visit that writes), a (offset), t: a text of a node stream from
        its beginning; the next text replaces it. Dies with `stream`."""
        return f"{self.run}:stream:{name}:text"

    def stream_read(self, name: str) -> str:
        """STRING the number of characters that the reader of a node stream has read, while it lives."""
        return f"{self.run}:stream:{name}:read"

    @property
    def stream_waits(self) -> str:
        """HASH seq -> the name of a node stream, and the node that this visit waits for to begin it. Dies 15 s after
        the last of them has said so."""
        return f"{self.run}:streams:waits"

    @property
    def gates(self) -> str:
        """HASH seq -> JSON (runs.Gate) of questions, `<seq>:answer` -> text once answered, `<seq>:handling` -> JSON
        (runs/handling.py) of what people have done with it. Gone after the run."""
        return f"{self.run}:gates"

    @property
    def output(self) -> str:
        """STRING the result text of a completed run. Dies: run."""
        return f"{self.run}:output"

    @property
    def children(self) -> str:
        """HASH id -> JSON {agent, seq} of child runs, `<id>:cost` -> JSON of the part of each child's cost that is
        counted in this run, by fields of `run`. Of a run that was forked also `forks:`, the number of its forks, and
        `forks:<page>`, the ids of FORKS_PAGE forks, each with a space after it, in order. Dies: run."""
        return f"{self.run}:children"

    @property
    def items(self) -> str:
        """HASH of values of single visits: `<seq>.<i>`, the overlay of the i-th item of the map `seq` until it is done,
        then its result; or of the i-th command of visit `seq` until its visit is over. An overlay consists of lines: a
        key as a JSON string, then its JSON text. `<seq>.answers` are the answers to interrupts of the visit `seq`, as a
        JSON list of runs.UsedAnswer, until it has ended. Also the conversations of loops, whose names are in
        planner/loops/turns.py; for a run in a session also `history`, the session's messages when the run was accepted,
        as a JSON list, and `said`, the messages that the run adds, after the end of its loop and before its own end.
        Dies: run."""
        return f"{self.run}:items"

    @property
    def no_session(self) -> str:
        """A key that never exists, used as the session's key for a run without a session."""
        return f"{self.run}:no-session"

    @property
    def windows(self) -> str:
        """HASH state key -> JSON {base, parts}: the parts of a key of a `dag` with a reducer, while an earlier write
        may still arrive (planner/folding.py). Dies: run."""
        return f"{self.run}:windows"

    def delta(self, seq: int, attempt: int) -> str:
        """HASH state key -> JSON text, delivered by a worker and not yet committed. The commit deletes the key."""
        return f"{self.run}:delta:{seq}.{attempt}"


@dataclass(frozen=True)
class BatchKeys:
    """The keys of one batch. Every key dies `retention` after the batch's last row is over; an unfinished batch never
    expires."""

    batch: str
    """HASH spec (JSON, runs.RunSpec: that of all its runs), plan (JSON, batches.BatchPlan; of a batch of forks
    fork_plan, and fork_state, JSON values by key that these begin with), created_ms, started_ms,
    ended_ms; numbers of rows by state: total, waiting, active, completed, failed, cancelled, and admitted (at least
    once active); sealed, paused and cancelling (1 or missing); tokens_in, tokens_out, model_calls, cost_usd and
    unpriced_calls, failed_visits of finished rows; rev, which increases when rows are admitted or the plan changes. For
    work in progress: cancel_at (the next row to process); retry (a request), retry_at, retry_rows (the number of rows
    that wait again). retried: `<request> <rows>` of the last 8 finished requests."""

    @property
    def rows(self) -> str:
        """LIST of waiting rows, the next one first: `<row> <JSON>` (batches.row_text or fork_text), or `<row> `
        for a retry."""
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
        """HASH row -> JSON {version (of its run at that time), usage, error, text}, of rows that failed or were
        cancelled, also after a retry; error and text (the row) if it could not become a run."""
        return f"{self.batch}:failures"

    @property
    def ends(self) -> str:
        """LIST of rows in the order in which they ended; a retried row is listed again."""
        return f"{self.batch}:ends"

    def all(self) -> dict[str, str]:
        return {
            "batch": self.batch, "rows": self.rows, "numbers": self.numbers, "names": self.names,
            "states": self.states, "failures": self.failures, "ends": self.ends,
        }  # fmt: skip


@dataclass(frozen=True)
class ScheduleKeys:
    """The keys of one schedule. They live until the schedule is removed."""

    schedule: str
    """HASH rev (a random token of the last change), plan (JSON, schedules.SchedulePlan; of a schedule of batches it is
    the field batch_plan, so that earlier releases, which would start runs, leave it alone), progress (JSON,
    schedules.ScheduleProgress), origin (JSON, schedules.ScheduleOrigin), spec (JSON, runs.RunSpec: that of all its
    runs), inputs (JSON, schedules.ScheduleInputs), begin (JSON, the state that its runs begin with), effect (the stream
    id of the last effect)."""

    partition: int

    @property
    def log(self) -> str:
        """LIST of JSON schedules.Fire, the newest first, at most schedules.MOST_FIRES."""
        return f"{self.schedule}:log"

    @property
    def rows(self) -> str:
        """LIST of JSON [key, batches.row_text], at most schedules.MOST_ROWS: the rows of each of its batches."""
        return f"{self.schedule}:rows"

    def staged_rows(self, token: str) -> str:
        """LIST as `rows`, of a schedule that is being added. Dies with that, or after an hour."""
        return f"{self.schedule}:rows:{token}"


@dataclass(frozen=True)
class JobKeys:
    """The keys of one job. They live as long as ended runs after its end."""

    job: str
    """HASH rev (a random token of the last change), plan (JSON, jobs.JobPlan), progress (JSON, jobs.JobProgress),
    spec (JSON, runs.RunSpec: what its forks are submitted with, if their agent is named)."""

    partition: int

    @property
    def refusals(self) -> str:
        """LIST of JSON jobs.Refusal, the first ones, at most jobs.MOST_REFUSALS. Dies with its job."""
        return f"{self.job}:refusals"


@dataclass(frozen=True)
class SlotKeys:
    """The slots that runs of one agent with the same key share. Every key except `known` dies with the last run that
    has a slot or waits for one."""

    tag: str
    digest: str
    partition: int

    @property
    def limit(self) -> str:
        """STRING the number of slots, as given by the last run that asked."""
        return f"{self.tag}:limit"

    @property
    def holders(self) -> str:
        """ZSET `run/ticket` (runs.Slot) by the last time when a check found that the run needs its slot."""
        return f"{self.tag}:holders"

    @property
    def waiters(self) -> str:
        """ZSET `run/ticket` by its arrival in microseconds, adjusted so that no two are equal."""
        return f"{self.tag}:waiters"

    @property
    def known(self) -> str:
        """HASH source partition -> stream id of the last effect that asked for a slot or freed one. Lives for an hour
        after the last change (slots.KNOWN_MS)."""
        return f"{self.tag}:known"


@dataclass(frozen=True)
class SharedKeys:
    """The shared values of an agent, or of a user of it. They live until they are removed."""

    values: str
    """HASH key without its scope -> JSON text."""

    partition: int

    @property
    def written(self) -> str:
        """HASH bytes: of all keys and values; f<partition>: the stream id of the last effect from there, with a colon
        after its letter. Dies an hour after the last value was removed (shared_values.KNOWN_MS)."""
        return f"{self.values}:written"


@dataclass(frozen=True)
class SignalKeys:
    """The signals of one name, and the visits that wait for them. Every key dies signals.KEEP_MS after the last signal,
    and not while a visit waits. A signal is named by its number: its time in microseconds since the epoch."""

    board: str
    """HASH per signal i<number> (its id), d<number> (JSON, its data), k<id> (its number), h<number> (the visit to which
    it is offered), t<number> (the place of the visit to which it was offered last); per visit in `one` w<visit> (the
    first signal that counts, and `sure` if it takes the first), o<visit> (the signals that are offered to it),
    p<visit> (while it is passed over, as its run is parked);
    f<partition> (the stream id of the last effect from there), last (the last number), bytes (of data), spreading
    (while an effect is on its way that tells more visits); each with a colon after its letter."""

    partition: int

    @property
    def log(self) -> str:
        """ZSET number of each signal, by itself. Bounded (signals.MOST, MOST_BYTES)."""
        return f"{self.board}:log"

    @property
    def every(self) -> str:
        """ZSET `run/seq/attempt` of visits that want every signal, by the last one that they were told of."""
        return f"{self.board}:every"

    @property
    def one(self) -> str:
        """ZSET `run/seq/attempt` of visits that want a signal for themselves, in order of arrival."""
        return f"{self.board}:one"

    @property
    def due(self) -> str:
        """ZSET signals that are to be offered to the next of `one`, by number."""
        return f"{self.board}:due"

    @property
    def left(self) -> str:
        """ZSET signals that none of `one` wants, by number."""
        return f"{self.board}:left"


@dataclass(frozen=True)
class SessionKeys:
    """The keys of one session of an agent. They live until the session is removed; a temporary session dies a day after
    its last run (sessions.TEMPORARY_MS), and not while it has one."""

    session: str
    """HASH run: the run accepted last; busy: 1 while that run is unfinished; created_ms, used_ms; dropped: the number
    of older messages that were removed; instructions: the dynamic instructions of the run that completed last, as JSON
    text; instructions_of: their source (sessions.instructions_of)."""

    @property
    def messages(self) -> str:
        """LIST of messages as JSON, oldest first."""
        return f"{self.session}:messages"


@dataclass(frozen=True)
class LimitChangeKeys:
    """The keys of what people have changed of limits."""

    tag: str

    @property
    def changes(self) -> str:
        """HASH pattern of a limit -> JSON models.LimitChange. A field lives until it is reset."""
        return f"{self.tag}:changes"

    @property
    def audit(self) -> str:
        """STREAM e (JSON, access/audit.py), as AccessKeys.audit."""
        return f"{self.tag}:audit"


@dataclass(frozen=True)
class LimitKeys:
    """The keys of one limit of models. Every key dies two hours after the last call under the limit."""

    tag: str

    @property
    def window(self) -> str:
        """HASH r<slice>, t<slice>: calls and tokens counted in a slice of time (its number: ms since the epoch divided
        by the length of a slice), `requests` and `tokens`: their sums over the window up to and including `slice`;
        cool_ms: no grants until then; took_ms: the average time for which a call holds its permit; ticket: of the next
        in line; h<holder>: `slice:tokens:ms` of the grant of a held permit."""
        return f"{self.tag}:window"

    @property
    def held(self) -> str:
        """ZSET holder of a permit by the end of its lease."""
        return f"{self.tag}:held"

    @property
    def line(self) -> str:
        """ZSET waiting caller by its ticket: the sum of the tokens that earlier callers have requested."""
        return f"{self.tag}:line"

    @property
    def due(self) -> str:
        """ZSET caller in `line` by the time at which it should come back."""
        return f"{self.tag}:due"

    @property
    def late(self) -> str:
        """ZSET caller that did not come back in time, by its ticket: it does not block others, and goes first if it
        comes."""
        return f"{self.tag}:late"

    def all(self) -> tuple[str, str, str, str, str]:
        """The keys in the order of limit_take.lua."""
        return self.window, self.held, self.line, self.due, self.late


def line_of(queue: str, batch: str) -> str:
    """The name of a queue's list of messages, after `broker_prefix`. Messages of batches are in a separate list, named
    as kombu names a lower priority: Celery reads it when the other one is empty."""
    return f"{queue}\x06\x16{BATCH_PRIORITY}" if batch else queue


def lines_of(queue: str) -> tuple[str, str]:
    """Both lists of a queue, in the order in which they are read."""
    return line_of(queue, ""), line_of(queue, "any")


def member(run_id: str, seq: int, attempt: int) -> str:
    """The name of a visit's attempt in outbox and leases."""
    return f"{run_id}/{seq}/{attempt}"


def member_of(task_id: str) -> str:
    """The member of the visit's attempt of a Celery task, whose id is `run:node:seq:attempt`."""
    run_id, _, rest = task_id.partition(":")
    _, seq, attempt = rest.rsplit(":", 2)
    return f"{run_id}/{seq}/{attempt}"


def cost_field(child: str) -> str:
    """The field of a child's cost in the `children` of a run (commit.lua has it too)."""
    return f"{child}:cost"


def parse_member(text: str) -> tuple[str, int, int]:
    run_id, seq, attempt = text.rsplit("/", 2)
    return run_id, int(seq), int(attempt)


def is_member(text: str) -> bool:
    """Whether `parse_member` can read this: another program may have written to an index."""
    try:
        run_id, _, _ = parse_member(text)
        return bool(run_id.encode())
    except ValueError:
        return False


def session_keys(keys: RunKeys, session: SessionKeys | None) -> dict[str, str]:
    """The session's part of a script's keys; without a session, a key that never exists."""
    if session is None:
        return {"session": keys.no_session, "messages": keys.no_session}
    return {"session": session.session, "messages": session.messages}


def last_run_keys(run: RunKeys) -> dict[str, str]:
    """The part of a script's keys that the last run of a thread is, which expires with all of them."""
    return {
        "last_state": run.state, "last_run": run.run, "last_spec": run.spec, "last_journal": run.journal,
        "last_events": run.events, "last_output": run.output, "last_frontier": run.frontier, "last_items": run.items,
        "last_windows": run.windows, "last_children": run.children,
    }  # fmt: skip
