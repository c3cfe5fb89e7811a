"""Where a run stands, for protocols that wait for its end."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from sleipnir.client.async_client import AsyncRun
from sleipnir.runs.views import RunInfo
from sleipnir_console.agent_protocol.agent_tasks import task_of
from sleipnir_console.listened_run import ListenedRun


class EndingRun:
    """A run that ends after so many looks at it."""

    id = "r1"

    def __init__(self, looks: int) -> None:
        self.looks = looks

    async def info(self) -> RunInfo:
        self.looks -= 1
        return RunInfo("r1", "judge", "running" if self.looks >= 0 else "completed", 0)

    async def gates(self) -> list[Any]:
        return []

    async def output(self) -> str:
        return '{"verdict": 7}'


def test_a_task_that_is_completed_has_its_output_whenever_its_run_ends() -> None:
    for looks in range(3):
        now = asyncio.run(ListenedRun(cast(AsyncRun, EndingRun(looks)), lambda: False).now())
        task = task_of(now)
        texts = [artifact["parts"][0]["text"] for artifact in task["artifacts"]]
        assert (task["status"]["state"], texts) in [("working", []), ("completed", ['{"verdict": 7}'])]
