"""An embedding model or a reranker by its id: its endpoint, and the secrets that its messages must not show.

Chats have a Dialogue instead. litellm is not imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sleipnir.errors import ConfigError, NodeFailed
from sleipnir_workers.llm import clients, litellm_compat, models
from sleipnir_workers.llm.clients import Kind
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.machine import keyring
from sleipnir_workers.machine.host import Host
from sleipnir_workers.machine.keyring import Keyring


@dataclass(frozen=True)
class ResolvedModel:
    """A model that can be called. `id` is `client:model`."""

    id: str
    endpoint: Endpoint
    _keys: Keyring = field(default_factory=lambda: Keyring({}, frozenset()), repr=False)
    _literal_keys: frozenset[str] = field(default=frozenset(), repr=False)

    def clean(self, text: str) -> str:
        """`text` without any secret of this process."""
        return self._keys.clean(text, self._literal_keys | self.endpoint.secrets)


def resolve_model(model_id: str, host: Host, kind: Kind) -> ResolvedModel:
    """The model with this id, for a purpose. Raises NodeFailed (`model`, `config`)."""
    try:
        configured = clients.clients_of(host)
        keys = keyring.keyring_of(host)
        endpoint = models.resolve(model_id, keys.env, litellm_compat.listed_providers(), configured, kind)
    except ConfigError as error:
        raise NodeFailed(str(error), "config") from error
    except NodeFailed as error:
        if litellm_compat.is_installed():
            raise
        raise NodeFailed(
            f"{error}. More providers are known with litellm: `pip install '.[llm]'` in a checkout", error.kind
        ) from error
    name, _, model = model_id.partition(":")
    return ResolvedModel(f"{name}:{model or endpoint.traits.name}", endpoint, keys, configured.literal_keys)
