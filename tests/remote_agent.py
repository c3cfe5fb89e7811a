"""A server of A2A made with the a2a SDK, in a process of its own: the remote agent of tests.

    python -m tests.remote_agent PORT FOLDER TOKEN

It serves the same agent at `/new` in version 1.0 of the protocol, and at `/old` in 0.3. What it does follows from the
first word of a message. Each execution is a line of FOLDER/executions; a slow task ends once FOLDER/go exists.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, Message, Part, Role, Task, TaskState
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse


class Executor(AgentExecutor):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message, text = context.message, context.get_user_input()
        assert message is not None and context.task_id is not None and context.context_id is not None
        self._note(text, message.message_id, context.task_id)
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        verb, _, rest = text.partition(" ")
        if verb == "message":
            said = Message(message_id="reply", role=Role.ROLE_AGENT, parts=[Part(text=f"just {rest}")])
            await event_queue.enqueue_event(said)
            return
        if context.current_task is None:
            begun = Task(id=context.task_id, context_id=context.context_id)
            begun.status.state = TaskState.TASK_STATE_SUBMITTED
            await event_queue.enqueue_event(begun)
        elif context.current_task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
            await self._complete(updater, f"chosen {text}")
            return
        await updater.start_work()
        why = updater.new_agent_message([Part(text=f"because of {rest}")])
        match verb:
            case "fail":
                await updater.failed(why)
            case "reject":
                await updater.reject(why)
            case "auth":
                await updater.requires_auth(why)
            case "ask":
                await updater.requires_input(updater.new_agent_message([Part(text=f"Which {rest}?")]))
            case _:
                while verb == "slow" and not (self._folder / "go").exists():
                    await asyncio.sleep(0.05)
                data = [MessageToDict(part)["data"] for part in message.parts if part.HasField("data")]
                await self._complete(updater, f"heard {rest}", {"verdict": rest, "given": data, "size": 7})

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None and context.context_id is not None
        self._note("cancelled", "", context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()

    async def _complete(self, updater: TaskUpdater, text: str, data: Any = None) -> None:
        parts = [Part(text=text)]
        if data is not None:
            parts.append(ParseDict({"data": data}, Part()))
        await updater.add_artifact(parts, name="result")
        await updater.complete()

    def _note(self, text: str, message: str, task: str) -> None:
        with (self._folder / "executions").open("a") as file:
            file.write(json.dumps({"text": text, "message": message, "task": task}) + "\n")


def main(port: int, folder: Path, token: str) -> None:
    executor, store, routes = Executor(folder), InMemoryTaskStore(), []
    for path, version in (("/new", "1.0"), ("/old", "0.3")):
        interface = AgentInterface(
            url=f"http://127.0.0.1:{port}{path}", protocol_binding="JSONRPC", protocol_version=version
        )
        card = AgentCard(name="remote", description="For tests.", version="1", supported_interfaces=[interface])
        card.capabilities.CopyFrom(AgentCapabilities(streaming=True))
        handler = DefaultRequestHandler(executor, store, card)
        routes += create_agent_card_routes(card, card_url=f"{path}/.well-known/agent-card.json")
        routes += create_jsonrpc_routes(handler, path, enable_v0_3_compat=version == "0.3")

    async def authenticated(request: Any, call_next: Any) -> Any:
        if request.headers.get("authorization") != f"Bearer {token}":
            return JSONResponse({"error": "no token"}, 401)
        return await call_next(request)

    app = Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=authenticated)])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
