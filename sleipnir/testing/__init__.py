"""Run agents without a model provider: a server with scripted replies, and recorded answers.

    with ModelServer(["first reply", Reply(calls=[Call("search", {"q": "bells"})]), Reply(status=429)]) as server:
        ...                       # an llm worker with the variables of server.env(), model `openai:gpt-test`
        server.requests[0].prompt

`python -m sleipnir.testing serve --script FILE` is the server as a process. Recordings: `tape.py`. docs/testing.md is
the page for users. Nothing here needs Redis, a model library, a scheduler or workers.
"""

from sleipnir.testing.reply import Call, Reply
from sleipnir.testing.request import Request, ToolResult
from sleipnir.testing.script import Rule, Script, load
from sleipnir.testing.server import ModelServer

__all__ = ["Call", "ModelServer", "Reply", "Request", "Rule", "Script", "ToolResult", "load"]
