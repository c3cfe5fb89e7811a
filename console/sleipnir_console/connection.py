"""The client that answers requests: one connection to the deployment for the process, in the name of each caller."""

from __future__ import annotations

from starlette.requests import Request

from sleipnir.client.async_client import AsyncClient
from sleipnir_console.permissions import caller_of


def client_of(request: Request) -> AsyncClient:
    """The client, for requests in the name of the caller. It shares the connections of all others."""
    client: AsyncClient = request.app.state.client
    return client.acting_as(caller_of(request).by)
