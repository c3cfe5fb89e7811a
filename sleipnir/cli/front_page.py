"""The text of `sleipnir --help`, and the table of all commands: name -> its module and one line of help.

Rule. Plain data and no imports: the help page must not load click (see `sleipnir.cli`). `app.py` finds the
commands through this same table and checks its options against OPTIONS, so there is one list of each.
"""

from __future__ import annotations

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run agents": {
        "run": ("sleipnir.cli.runs.run:run", "Run an agent, show its progress, print its result."),
        "chat": ("sleipnir.cli.chat.chat:chat", "Chat with an agent."),
        "submit": ("sleipnir.cli.runs.run:submit", "Start a run and print its id without waiting."),
        "batch": ("sleipnir.cli.batches.batch:batch", "Run an agent on each row of a file; watch and steer."),
        "schedule": ("sleipnir.cli.schedules.schedule:schedule", "Run an agent at certain times."),
        "watch": ("sleipnir.cli.runs.watch:watch", "Show a run from its beginning and follow it to its end."),
        "wait": ("sleipnir.cli.runs.watch:wait", "Wait until runs have ended."),
        "pause": ("sleipnir.cli.runs.steering:pause", "Pause runs, or a whole deployment."),
        "resume": ("sleipnir.cli.runs.steering:resume", "Resume paused runs."),
        "cancel": ("sleipnir.cli.runs.steering:cancel", "Cancel runs."),
        "retry": ("sleipnir.cli.runs.steering:retry", "Continue failed runs from where they failed."),
        "job": ("sleipnir.cli.runs.job:job", "Cancel, pause, resume, retry or fork many runs."),
        "skip": ("sleipnir.cli.runs.skip:skip", "Finish a visit with a value that you give."),
        "fork": ("sleipnir.cli.runs.fork:fork", "Start a run that goes on from an earlier step of another."),
        "rewind": ("sleipnir.cli.runs.fork:rewind", "Go on from an earlier step of a run, and cancel it."),
    },
    "Answer": {
        "gates": ("sleipnir.cli.runs.gates:gates", "List the open questions of all runs, or of one."),
        "answer": ("sleipnir.cli.runs.gates:answer", "Answer an open question of a run."),
        "claim": ("sleipnir.cli.runs.gate_handling:claim", "Claim an open question of a run, or release it."),
        "assign": ("sleipnir.cli.runs.gate_handling:assign", "Say whose work an open question is."),
        "comment": ("sleipnir.cli.runs.gate_handling:comment", "Say something about a question without answering it."),
        "snooze": ("sleipnir.cli.runs.gate_handling:snooze", "Hide an open question from your work for some time."),
        "link": ("sleipnir.cli.runs.gate_handling:link", "Make a signed link to an open question."),
        "signal": ("sleipnir.cli.runs.signals:signal", "Send an event to all runs that wait for it."),
        "signals": ("sleipnir.cli.runs.signals:signals", "List the events that were sent."),
    },
    "Look": {
        "ps": ("sleipnir.cli.runs.ps:ps", "List runs."),
        "failures": ("sleipnir.cli.runs.failures:failures", "List failed runs in groups that failed alike."),
        "show": ("sleipnir.cli.runs.show:show", "Show one run: status, where it is, result, state."),
        "state": ("sleipnir.cli.runs.state:state", "Show a run's state, now or after a step; compare two steps."),
        "lineage": ("sleipnir.cli.runs.lineage:lineage", "Draw the sources and the forks of a run as a tree."),
        "history": ("sleipnir.cli.runs.history:history", "List the committed steps of a run."),
        "trace": ("sleipnir.cli.runs.trace:trace", "Draw what a run's visits did: times, tokens, tools, errors."),
        "compare": ("sleipnir.cli.runs.compare:compare", "Compare two runs, or two batches row by row."),
        "export": ("sleipnir.cli.runs.export:export", "Write a run as lines of JSON."),
        "archive": ("sleipnir.cli.fleet.archive:archive", "Read runs that were archived."),
    },
    "Agents": {
        "init": ("sleipnir.cli.agents.init:init", "Create a new agent from a template."),
        "agents": ("sleipnir.cli.agents.agents:agents", "List the agents that can be run; install the shipped ones."),
        "sessions": ("sleipnir.cli.chat.sessions:sessions", "List, show or remove an agent's sessions."),
        "threads": ("sleipnir.cli.runs.threads:threads", "List, show or remove threads of runs."),
        "values": ("sleipnir.cli.runs.values:values", "Show or change values of agents and of their users."),
        "validate": ("sleipnir.cli.agents.validate:validate", "Check an agent and report every problem."),
        "upgrade": ("sleipnir.cli.agents.upgrade:upgrade", "Rewrite a graph of version 1.0 to sleipnir/1."),
        "schema": ("sleipnir.cli.agents.validate:schema", "Print the JSON Schema of graph.yaml for editors."),
        "tools": ("sleipnir.cli.agents.tools:tools", "List an agent's tools, or call one."),
        "kb": ("sleipnir.cli.knowledge.kb:kb", "Build, show and search knowledge bases of rag nodes."),
        "structure": ("sleipnir.cli.agents.structure:structure", "Export nodes, edges and surfaces of an agent."),
        "draw": ("sleipnir.cli.agents.draw:draw", "Draw a graph, or the progress of a run."),
    },
    "Operate": {
        "up": ("sleipnir.cli.fleet.services:up", "Run scheduler and workers here, in the foreground."),
        "scheduler": ("sleipnir.cli.fleet.services:scheduler", "Run one scheduler (becomes that process)."),
        "worker": ("sleipnir.cli.fleet.services:worker", "Run one Celery worker (becomes that process)."),
        "console": ("sleipnir.cli.fleet.services:console", "Serve the HTTP API (becomes that process)."),
        "incident": ("sleipnir.cli.fleet.incident:incident", "Pause everything, then resume it in parts."),
        "users": ("sleipnir.cli.access.users:users", "Users of the HTTP API and their roles."),
        "tokens": ("sleipnir.cli.access.tokens:tokens", "Tokens for programs that use the HTTP API."),
        "hooks": ("sleipnir.cli.webhooks.hooks:hooks", "Let other programs start runs, by HTTP."),
        "webhooks": ("sleipnir.cli.webhooks.webhooks:webhooks", "Tell other programs what happens, by HTTP."),
        "audit": ("sleipnir.cli.access.audit:audit", "What was changed, by whom and why."),
        "mcp": ("sleipnir.cli.fleet.mcp_serving:mcp", "Serve agents as tools of an MCP server."),
        "cache": ("sleipnir.cli.fleet.cache:cache", "List or clear the cached results of nodes."),
        "limits": ("sleipnir.cli.fleet.limits:limits", "Show the use of model limits."),
        "dead-letters": (
            "sleipnir.cli.fleet.dead_letters:dead_letters",
            "Messages between runs that cannot be delivered.",
        ),
        "gc": ("sleipnir.cli.fleet.gc:gc", "Remove unused data."),
        "doctor": ("sleipnir.cli.fleet.doctor:doctor", "Check this installation and suggest fixes."),
        "completion": ("sleipnir.cli.completion:completion", "Print tab completion for a shell."),
    },
}

COMMANDS: dict[str, tuple[str, str]] = {
    name: entry for commands in SECTIONS.values() for name, entry in commands.items()
}

OPTIONS: dict[str, str] = {
    "--agents-dir DIR": "Search here first for agents.",
    "--home DIR": "Directory of the private stack and your own agents.",
    "--redis-url URL": "The Redis of a deployment. Unset: a private stack in --home.",
    "-v, --verbose": "Log more; show tracebacks. Twice: log everything.",
    "--no-color": "No colours (as NO_COLOR does).",
    "--version": "Print the version.",
    "-h, --help": "Print this page.",
}

_HEAD = """\
Usage: sleipnir [OPTIONS] COMMAND [ARGS]...

  Runs YAML graph agents as durable, distributed workflows."""

_FOOT = """\
`sleipnir COMMAND --help` says more; `sleipnir doctor --settings` lists the
settings, which are SLEIPNIR_* variables."""


def text() -> str:
    """The help page, for 80 columns."""
    parts = [_HEAD]
    for title, commands in SECTIONS.items():
        parts.append(_section(title, {name: line for name, (_, line) in commands.items()}))
    parts.append(_section("Options", OPTIONS))
    parts.append(_FOOT)
    return "\n\n".join(parts)


def _section(title: str, lines: dict[str, str]) -> str:
    return f"{title}:\n" + "\n".join(f"  {name:<18}{line}" for name, line in lines.items())
