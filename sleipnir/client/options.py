"""The options that all submissions of runs share: the keywords that clients pass on as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from sleipnir.agents.variables import Asker
from sleipnir.errors import UsageError
from sleipnir.knowledge import preparing as knowledge

if TYPE_CHECKING:
    from sleipnir.client.updates import WantedUpdate


class RunOptions(TypedDict, total=False):
    """The keywords that Client.submit and Client.batch share. Each may be omitted; None means the same.

    variables       Presets of agent variables, by name. The others get their values as described in
                    sleipnir.agents.variables.
    cwd             The working directory of scripts and tools. None: `caller_dir`, if the workers are on this machine;
                    otherwise commands work in a scratch folder of the run.
    caller_dir      The base of relative paths in the prompt. None: the working directory of this process.
    scratch         True: the caller has no directory, as a server that submits for others. Commands work in a scratch
                    folder of the run, unless there is a `cwd`.
    strict          The run fails at every failed visit: one that no fallback, retry or `on_error` node handles. None:
                    the value of SLEIPNIR_STRICT, or True if models' answers are replayed.
    config          What nodes of a graph written in Python get as `config`: the keys `configurable`, `metadata`, `tags`
                    and `run_name`. `recursion_limit` limits the run's super-steps, `max_concurrency` its visits on
                    workers at the same time. It is stored with the run: it must be JSON, and holds no secrets.
    context         What these nodes get as `runtime.context`: a dict, or for a graph that a program has built also an
                    instance of a class that workers find. It is stored in the same way.
    interrupt_before
                    Names of nodes before which the run stops until `resume`, or "*": all of them. They replace those
                    of the graph. None, or no names: those of the graph.
    interrupt_after The same, of nodes after which it stops.
    overrides       Other settings of llm nodes for this run, by paths of nodes: `{"expert/ask": {"temperature": 0}}`;
                    `*` means all (docs/graph-language.md). They are stored with the run.
    patches         What such nodes say and may call instead, by surfaces: `{"ask#instruction": "Be brief."}`.
    user            The user that the run is for: it begins with the values of that user and of the agent, as state keys
                    that begin with `user:` and `app:`, and writes them back (docs/threads.md).
    tags            Texts by key, by which the run and the runs that it starts are found: `{"customer": "acme"}`. At
                    most 16, of at most 200 characters.
    namespace       The namespace in whose lists they are. None: that of SLEIPNIR_NAMESPACE, or `default`.
    ask_variable    Called for each agent variable that has no value.
    ask_knowledge   Asks a person for missing parameters of knowledge bases. Missing bases are built before the
                    submission, which may take long.
    tell_knowledge  Called with the progress of these builds.
    """

    variables: Mapping[str, str] | None
    cwd: Path | None
    caller_dir: Path | None
    scratch: bool | None
    strict: bool | None
    config: Mapping[str, Any] | None
    context: Any
    interrupt_before: Sequence[str] | None
    interrupt_after: Sequence[str] | None
    overrides: Mapping[str, Mapping[str, Any]] | None
    patches: Mapping[str, Any] | None
    user: str | None
    tags: Mapping[str, str] | None
    namespace: str | None
    ask_variable: Asker | None
    ask_knowledge: knowledge.Asker | None
    tell_knowledge: knowledge.Report | None


@dataclass(frozen=True)
class ForkChanges:
    """What a fork has in the place of what its source has: values of the `state`, the definition of `agent` (a name or
    a folder), the `model` of all llm nodes, `overrides` and `patches` of nodes, and `tags`, on top of those of the
    source. None: as the source. With an `update` it begins with that."""

    state: Mapping[str, Any] = field(default_factory=dict)
    agent: str | Path | None = None
    model: str | None = None
    overrides: Mapping[str, Mapping[str, Any]] | None = None
    patches: Mapping[str, Any] | None = None
    update: WantedUpdate | None = None
    tags: Mapping[str, str] | None = None


NAMES: Final = tuple(RunOptions.__annotations__)


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Raises TypeError for a keyword that is no option, as Python does for one that is no parameter."""
    for name in options:
        if name not in NAMES:
            raise TypeError(f"unexpected keyword argument {name!r}; the options of runs are {', '.join(NAMES)}")


def overrides_in(options: RunOptions) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """The overrides and patches of nodes; overrides may also be in the configuration of a graph in
    Python. Raises UsageError if they are in both."""
    config = options.get("config")
    configured = config.get("overrides") if isinstance(config, Mapping) else None
    given = options.get("overrides")
    if configured is None:
        return given, options.get("patches")
    if given is not None:
        raise UsageError("give overrides once: as an option, or in the configuration")
    return configured, options.get("patches")
