"""`python -m sleipnir_workers.tools call FOLDER NAME`: run one tool of the agent in FOLDER in this process.

The arguments are JSON on stdin. The result for the model is printed to stdout; the tool's own output goes to stderr.
`sleipnir tools call` starts it. Exit codes: 0, 1 when the tool failed, 2 when it cannot be called.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sleipnir import logs
from sleipnir.agents.variables import of_environment
from sleipnir.errors import GraphError, SleipnirError
from sleipnir.graph.load import load_file
from sleipnir.tools.folder import tools_of
from sleipnir_workers.machine.agent_environment import agent_variables
from sleipnir_workers.machine.host import this_host
from sleipnir_workers.tools import timeouts
from sleipnir_workers.tools.call import answer
from sleipnir_workers.tools.place import Place
from sleipnir_workers.tools.repeated_calls import PastCall


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sleipnir_workers.tools")
    parser.add_argument("verb", choices=["call"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--config-file", type=Path, help="read in place of the folder's config.yaml")
    parser.add_argument("--var", action="append", default=[], metavar="NAME=TEXT")
    options = parser.parse_args(argv)
    try:
        variables = dict(pair.split("=", 1) for pair in options.var)
        return _call(options.folder.resolve(), options.config_file, options.name, variables)
    except SleipnirError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _call(folder: Path, config_file: Path | None, name: str, variables: dict[str, str]) -> int:
    host = this_host()
    logs.configure(host.settings)
    # A launcher would be a second interpreter to start, for a single call.
    host = replace(host, settings=host.settings.replaced(warm_python=False))
    loaded = load_file(folder, config_file)
    if loaded.graph is None:
        raise GraphError(f"{folder} cannot be read", loaded.problems)
    tools = tools_of(folder, host.functions_dir, loaded.graph)
    variables = {**of_environment(loaded.graph, host.env), **variables}
    place = Place(folder.name, folder, Path.cwd(), host, agent_variables(loaded.graph, variables, host))
    timeout_s = timeouts.seconds_of(None, loaded.graph, host)
    result = answer(PastCall(name, sys.stdin.read()), tools, place, timeout_s=timeout_s)
    if result.printed:
        print(result.printed, end="" if result.printed.endswith("\n") else "\n", file=sys.stderr)
    print(result.text)
    return 1 if result.failure else 0


if __name__ == "__main__":
    sys.exit(main())
