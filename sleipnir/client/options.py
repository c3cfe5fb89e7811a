"""The options that all submissions of runs share: the keywords that clients pass on as one value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypedDict

from sleipnir.agents.variables import Asker
from sleipnir.knowledge import preparing as knowledge


class RunOptions(TypedDict, total=False):
    """The keywords that Client.submit and Client.batch share. Each may be omitted; None means the same.

    variables       Presets of agent variables, by name. The others get their values as described in
                    sleipnir.agents.variables.
    cwd             The working directory of scripts and tools. None: `caller_dir`, if the workers are on this machine;
                    otherwise commands work in a scratch folder of the run.
    caller_dir      The base of relative paths in the prompt. None: the working directory of this process.
    strict          The run fails at every failed visit: one that no fallback, retry or `on_error` node handles. None:
                    the value of SLEIPNIR_STRICT, or True if models' answers are replayed.
    config          What nodes of a graph written in Python get as `config`: the keys `configurable`, `metadata`, `tags`
                    and `run_name`. `recursion_limit` limits the run's super-steps, `max_concurrency` its visits on
                    workers at the same time. It is stored with the run: it must be JSON, and holds no secrets.
    context         What these nodes get as `runtime.context`: a dict, or for a graph that a program has built also an
                    instance of a class that workers find. It is stored in the same way.
    ask_variable    Called for each agent variable that has no value.
    ask_knowledge   Asks a person for missing parameters of knowledge bases. Missing bases are built before the
                    submission, which may take long.
    tell_knowledge  Called with the progress of these builds.
    """

    variables: Mapping[str, str] | None
    cwd: Path | None
    caller_dir: Path | None
    strict: bool | None
    config: Mapping[str, Any] | None
    context: Any
    ask_variable: Asker | None
    ask_knowledge: knowledge.Asker | None
    tell_knowledge: knowledge.Report | None


NAMES: Final = tuple(RunOptions.__annotations__)


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Raises TypeError for a keyword that is no option, as Python does for one that is no parameter."""
    for name in options:
        if name not in NAMES:
            raise TypeError(f"unexpected keyword argument {name!r}; the options of runs are {', '.join(NAMES)}")
