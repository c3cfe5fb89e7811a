"""What clients over HTTP do not have, each with the reason, and the methods that say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from sleipnir.errors import NotServed

Class = TypeVar("Class", bound=type)

_RECORDS: Final = "the API shows no records of the store"
_DEFINITION: Final = "definitions are read where the agents are: `GET /api/v1/agents/AGENT` has its file and findings"
_CHECKPOINTS: Final = "the API has no LangGraph snapshots: `state_at` and `history` have the states and the steps"
_SHARED: Final = "the API has no shared values yet"
_MASS: Final = "submit a job, which goes on without this client: `client.jobs.submit`"
_VIEWS: Final = "the API has views of them, not these records: docs/http-api.md lists its routes"

UNSERVED: Final[Mapping[str, str]] = {
    "Client.access": _VIEWS,
    "Client.acting_as": "who acts is said by the token",
    "Client.add_to_session": "the API has no route that adds to a session: runs do",
    "Client.compare_batches": "the API compares a page of rows at a time: `Batch.comparisons`",
    "Client.definition": _DEFINITION,
    "Client.get_state": _CHECKPOINTS,
    "Client.get_state_history": _CHECKPOINTS,
    "Client.nodes": _DEFINITION,
    "Client.pause_runs": _MASS,
    "Client.prepare_knowledge": "bases are built by submissions there",
    "Client.remove_shared_values": _SHARED,
    "Client.resume_runs": _MASS,
    "Client.resumed": "the API has only who holds the deployment now: `held`",
    "Client.set_shared_values": _SHARED,
    "Client.shared_value_counts": _SHARED,
    "Client.shared_values": _SHARED,
    "Client.store": _RECORDS,
    "Client.structure": _DEFINITION,
    "Client.warnings": _DEFINITION,
    "GateInbox.release_all": "logging out ends all claims of a person",
    "GateLinks.opened": "who has a link opens it in a browser",
    "Hooks.receive": "requests of a hook come to `/hooks/NAME` of the server",
    "Run.checkpoint": "`history` says of each step whether it is a checkpoint",
    "Run.export": "its lines come from `GET /api/v1/runs/RUN/export`",
    "Run.get_state": _CHECKPOINTS,
    "Run.get_state_history": _CHECKPOINTS,
    "Run.graph": "the API has its drawing only: `GET /api/v1/runs/RUN/drawing`",
    "Run.past_steps": "the API has the steps of each run: `history` of its source has them",
    "Run.trace_lines": "the API has the trace as data: `trace`",
    "Webhooks.lost_notes": "`sleipnir doctor` says so",
    "Webhooks.senders": "`sleipnir doctor` says so",
}
INSTEAD: Final = "A client of Redis has it (SLEIPNIR_REDIS_URL)"


def not_served(what: str, why: str) -> NotServed:
    """The error for a method or a parameter."""
    return NotServed(f"{what} does not work over HTTP: {why}. {INSTEAD}")


def refusing(name: str) -> Callable[[Class], Class]:
    """A decorator: what UNSERVED lists for the class `name` raises NotServed in the decorated one."""

    def decorate(of: Class) -> Class:
        for place, why in UNSERVED.items():
            owner, _, member = place.partition(".")
            if owner == name:
                setattr(of, member, _refusal(of, place, member, why))
        return of

    return decorate


def _refusal(of: type, place: str, member: str, why: str) -> Any:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise not_served(place, why)

    refuse.__name__, refuse.__doc__ = member, f"Raises NotServed: {why}."
    was = getattr(of, member, None)
    return refuse if callable(was) else property(refuse)
