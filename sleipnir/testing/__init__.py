"""Test agents: run one in the process of the test, with a scripted model, or with recorded answers.

    result = run("agents/letters", "Our bell is cracked", model=["urgent"])
    assert result.status == "completed"

    with ModelServer(["first reply", Reply(calls=[Call("search", {"q": "bells"})]), Reply(status=429)]) as server:
        ...                       # an llm worker with the variables of server.env(), model `openai:gpt-test`
        server.requests[0].prompt

`python -m sleipnir.testing serve --script FILE` is the server as a process. Recordings: `tape.py`. docs/testing.md is
the page for users. Nothing here needs Redis; what `run` needs of the scheduler and the workers it imports when it is
called.
"""

from sleipnir.memory.shared_values import MemoryValues
from sleipnir.testing.in_process import AskedQuestion, EndedVisit, RunResult, run
from sleipnir.testing.reply import Call, Reply
from sleipnir.testing.request import Request, ToolResult
from sleipnir.testing.script import Rule, Script, load
from sleipnir.testing.server import ModelServer

__all__ = [
    "AskedQuestion", "Call", "EndedVisit", "MemoryValues", "ModelServer", "Reply", "Request", "Rule", "RunResult",
    "Script", "ToolResult", "load", "run",
]  # fmt: skip
