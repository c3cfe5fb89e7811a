"""What the bodies of requests have in common: unknown fields are refused, and no value is converted to another type."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MOST_INT: Final = 2**53 - 1
"""The largest whole number that every JSON reader has exactly. Redis takes none above 2^63."""


class StrictModel(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)


AgentName: TypeAlias = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^/\\.\x00-\x1f][^/\\\x00-\x1f]*$")
]
"""The name of an agent that the server knows. A path is refused: it would be one of the server's machine."""

RunId: TypeAlias = Annotated[str, Path(description="The id of a run, or a unique prefix of at least 6 characters.")]
AgentPath: TypeAlias = Annotated[AgentName, Path(description="The name of an agent.")]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=500, description="At most so many.")]

Values: TypeAlias = dict[str, Any]
"""JSON values by name."""

Reason: TypeAlias = Annotated[str | None, Field(max_length=1000, description="Shown to others, and journaled.")]
PauseTimeout: TypeAlias = Annotated[
    float | None,
    Field(
        strict=False,
        ge=0,
        le=366 * 86_400,
        description="Seconds after which visits that still run are stopped; 0: now.",
    ),
]
