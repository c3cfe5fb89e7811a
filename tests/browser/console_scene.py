"""A deployment for the tests of pages: runs in many states, with hostile texts, users of each role, and a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sleipnir.access.records import ACCESS_ROLES
from sleipnir.client.batch import Batch
from sleipnir.client.client import Client
from tests.console import Console, console_of
from tests.processes import CALM, RedisServer, Stack, write_agent
from tests.waiting import wait_until

PASSWORD = "correct horse battery"
HOSTILE = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">'
RIGHT_TO_LEFT = "طلب استرداد \u202egnp.exe"
INVOICE = (
    """
name: invoice-intake
version: sleipnir/1
description: Reads invoices, checks them and books them.
start: read
nodes:
  read: {type: script, script: scripts/read.sh, next: classify}
  classify: {type: function, call: "steps.py:classify", next: approve}
  approve:
    type: approval
    question: |
      # Book invoice {{number}} for {{amount}} EUR?

      The supplier is **new**: """
    + HOSTILE
    + """ Please check:

      - the amount, and [the order](javascript:alert(1))
      - that the account is known
    options: [approve, reject]
    routes: {approve: book, reject: report}
    on_other: report
  book: {type: script, script: scripts/book.sh, next: done}
  report: {type: function, call: "steps.py:report", next: done}
  done: {type: end, output: "{{letter}}"}
"""
)
STEPS = """
from sleipnir import interrupt


def classify(state):
    return {"kind": "invoice", "notes": HOSTILE, "letter": "booked"}


def report(state):
    return {"letter": "not booked " + HOSTILE}


def fail(state):
    raise ConnectionRefusedError("erp-eu-central: account 4711 is closed " + HOSTILE)


def ask(state):
    answer = interrupt(
        {"question": "Refund the customer?", "customer": HOSTILE, "amount": 1249.0},
        key="refund",
        response_schema={
            "type": "object",
            "required": ["amount", "currency"],
            "properties": {
                "amount": {"type": "number", "minimum": 0, "maximum": 1249, "default": 1249, "title": "Amount"},
                "currency": {"enum": ["EUR", "SEK"], "title": "Currency"},
                "tell": {"type": "boolean", "title": "Tell the customer", "default": True},
                "note": {"type": "string", "title": "Note"},
            },
        },
    )
    return {"letter": "refunded " + str(answer["amount"])}


def grade(state):
    text = state["initial_prompt"]
    if "unreadable" in text:
        raise ValueError("clauses.7.cap: input should be a valid number (got 'tolv månaders avgift') " + HOSTILE)
    if "missing" in text:
        raise FileNotFoundError("404 for document " + text)
    return {"letter": text + ": fine", "words": len(text)}


def grow(state):
    return {"big": "x" * 10_000_000, "letter": "grown"}
""".replace("HOSTILE", repr(HOSTILE))
FAILING = """
name: price-watch
version: sleipnir/1
start: fetch
nodes:
  fetch: {type: function, call: "steps.py:fail", next: done}
  done: {type: end, output: "{{letter}}"}
"""
REFUND = """
name: refund-desk
version: sleipnir/1
start: judge
nodes:
  judge: {type: function, call: "steps.py:ask", next: done}
  done: {type: end, output: "{{letter}}"}
"""
GROWING = """
name: growing
version: sleipnir/1
start: grow
nodes:
  grow: {type: function, call: "steps.py:grow", next: done}
  done: {type: end, output: "{{letter}}"}
"""
REPORT = """
name: nightly-report
version: sleipnir/1
start: report
nodes:
  report: {type: function, call: "steps.py:report", next: done}
  done: {type: end, output: "{{letter}}"}
"""
GRADING = """
name: contract-diff
version: sleipnir/1
description: Grades a contract.
state:
  id: {type: string}
start: grade
nodes:
  grade: {type: function, call: "steps.py:grade", next: done}
  done: {type: end, output: "{{letter}}"}
"""
READ = 'echo \'{"number": "2026-4471", "amount": 1249}\'\n'


@dataclass
class Scene:
    """The deployment. `runs` has the ids of runs by what they are."""

    stack: Stack
    console: Console
    client: Client
    folder: Path
    """The agents, which the server knows by their names."""
    runs: dict[str, str] = field(default_factory=dict)
    batches: dict[str, str] = field(default_factory=dict)
    """The ids of batches by what they are."""
    jobs: dict[str, str] = field(default_factory=dict)
    """The ids of jobs by what they are."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.console.port}"

    def submit_invoice(self, customer: str = "acme") -> str:
        """A run that asks a person; its id, when it asks. After an outage of Redis a lost message is published again
        after CALM's redispatch_after_s, so it may take a few minutes."""
        run = self.client.submit(self.folder / "invoice-intake", tags={"customer": customer})
        wait_until(run.gates, f"{run.id} asks", 180)
        return run.id


@contextmanager
def scene_of(redis: RedisServer, folder: Path) -> Iterator[Scene]:
    """The deployment, with a run in each state that the pages show."""
    agents = folder / "home" / "agents"
    limits = folder / "limits.yaml"
    limits.write_text("models:\n  'mistral:*': {requests_per_minute: 600, max_parallel: 8}\n")
    with Stack(redis, folder / "home", key_prefix="pages", limits=limits, **CALM) as stack:
        stack.start_scheduler()
        stack.start_worker("scripts", "scripts")
        stack.start_worker("functions", "functions")
        _write(agents)
        with stack.client() as client, console_of(stack) as console:
            scene = Scene(stack, console, client, agents)
            _fill(scene)
            _add_users(client)
            _add_threads(scene)
            _add_schedules(scene)
            _add_batches(scene)
            _add_jobs(scene)
            yield scene


def _write(folder: Path) -> None:
    for name, graph in (
        ("invoice-intake", INVOICE), ("price-watch", FAILING), ("refund-desk", REFUND),
        ("growing", GROWING), ("nightly-report", REPORT), ("contract-diff", GRADING),
    ):  # fmt: skip
        write_agent(folder / name, graph, steps_py=STEPS, scripts__read_sh=READ, scripts__book_sh=READ)


def _fill(scene: Scene) -> None:
    client, folder, runs = scene.client, scene.folder, scene.runs
    failed = [client.submit(folder / "price-watch", tags={"region": "emea"}) for _ in range(3)]
    big = client.submit(folder / "growing", tags={"note": RIGHT_TO_LEFT.replace("\u202e", "")})
    booked, rejected = scene.submit_invoice("acme"), scene.submit_invoice("acme")
    client.run(booked).answer("approve")
    client.run(rejected).answer("reject")
    for run in (*failed, big, client.run(booked), client.run(rejected)):
        run.wait(120)
    cancelled, paused = scene.submit_invoice("gone"), scene.submit_invoice("held")
    client.run(cancelled).cancel()
    client.run(paused).pause(reason="month end")
    refund = client.submit(folder / "refund-desk", tags={"customer": "Nguyễn Thị Minh Khai"})
    wait_until(refund.gates, "it asks", 60)
    runs |= {
        "failed": failed[0].id, "big": big.id, "booked": booked, "rejected": rejected, "cancelled": cancelled,
        "paused": paused, "refund": refund.id, "asking": scene.submit_invoice("<b>bold</b> & co"),
    }  # fmt: skip
    wait_until(lambda: client.run(paused).status == "paused", "it is paused", 60)
    wait_until(lambda: client.run(cancelled).status == "cancelled", "it is cancelled", 60)


def _add_threads(scene: Scene) -> None:
    """A thread with two turns."""
    for answer in ("approve", "reject"):
        run = scene.client.submit(scene.folder / "invoice-intake", HOSTILE, thread="monday")
        wait_until(run.gates, f"{run.id} asks", 180)
        run.answer(answer)
        run.wait(120)


def _add_schedules(scene: Scene) -> None:
    agent = scene.folder / "nightly-report"
    report = scene.client.schedule("report", agent, cron="0 7 * * 1-5", tz="Europe/Berlin", tags={"of": "report"})
    run = report.run_now()
    run.wait(60)
    scene.runs["scheduled"] = run.id
    closing = scene.client.schedule("month-end", agent, every="1d")
    closing.pause("audit week " + HOSTILE)


def _add_batches(scene: Scene) -> None:
    agent, client = scene.folder / "contract-diff", scene.client

    def prompt_of(number: int) -> str:
        return f"contract {number}" + (" unreadable" if number % 20 == 7 else " missing" if number % 50 == 31 else "")

    def submitted(name: str, numbers: range, **options: Any) -> Batch:
        rows = ({"prompt": prompt_of(number), "id": f"C-2026-{number:04}"} for number in numbers)
        return client.batch(agent, rows, key="id", name=name, **options)

    graded = submitted("contracts <b>november</b>", range(160))
    again = client.batch(
        agent,
        [{"prompt": f"contract {number} again", "id": f"C-2026-{number:04}"} for number in range(5, 12)],
        key="id",
    )
    asking = submitted("contracts-december", range(40), canary=6, max_cost_usd=5)
    for batch in (graded, again):
        batch.wait(180)
    wait_until(lambda: asking.info().state == "canary", "its canary rows are over", 120)
    scene.batches |= {"graded": graded.id, "again": again.id, "canary": asking.id}


def _add_jobs(scene: Scene) -> None:
    job = scene.client.jobs.submit("cancel", runs=[scene.runs["asking"]], why=HOSTILE)
    scene.client.jobs.stop(job.id, "not this one " + HOSTILE)
    scene.jobs["stopped"] = job.id


def _add_users(client: Client) -> None:
    for role in ACCESS_ROLES:
        client.access.add_user(role, PASSWORD, {"*": role})
