"""One call of an embedding model: the vectors of texts (spec 8.5, 10.3).

Rules. Retries are the caller's. Vectors are bytes, little-endian float32, so that this module needs no numpy.
"""

from __future__ import annotations

import base64
import binascii
import sys
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from sleipnir.errors import NodeFailed
from sleipnir_workers.llm import litellm_compat, prices, transport
from sleipnir_workers.llm.failures import CallFailed, from_error
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.reply import part_of

Purpose: TypeAlias = Literal["document", "query"]

CALL_TIMEOUT_S = 120.0
MOST_TEXTS: Mapping[str, int] = {"cohere": 96, "gemini": 100, "vertex_ai": 250}
"""The maximum number of texts per call, by provider."""
MOST_TEXTS_ELSEWHERE = 2_048  # OpenAI's, the highest limit that we know
MOST_BYTES = 300_000  # of all texts of a call: OpenAI's limit in tokens, and a token is at least a byte

_BY_HOST: Mapping[str, tuple[str, Mapping[Purpose, str]]] = {
    "api.voyageai.com": ("input_type", {"document": "document", "query": "query"}),
    "api.jina.ai": ("task", {"document": "retrieval.passage", "query": "retrieval.query"}),
}
"""The field for the purpose and its values, for servers that speak OpenAI's protocol."""
_COHERE: Mapping[Purpose, str] = {"document": "search_document", "query": "search_query"}
_GOOGLE: Mapping[Purpose, str] = {"document": "RETRIEVAL_DOCUMENT", "query": "RETRIEVAL_QUERY"}

_takes_no_base64: set[str] = set()
"""Servers that refused the field `encoding_format`."""
_refused_lock = threading.Lock()


@dataclass(frozen=True)
class EmbeddedTexts:
    """`vectors` are in the order of the texts. `tokens` 0: not reported. `cost_usd` None: unknown."""

    vectors: Sequence[bytes]
    tokens: int
    cost_usd: float | None


def embed(
    endpoint: Endpoint,
    texts: Sequence[str],
    purpose: Purpose,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
    clean: Callable[[str], str] = str,
) -> EmbeddedTexts:
    """The vectors of `texts`. `clean` removes secrets from error messages. Raises CallFailed, and NodeFailed (`model`)
    if litellm is needed and not installed."""
    call = _over_http if transport.is_direct(endpoint, "embeddings") else _by_litellm
    try:
        answer = call(endpoint, texts, purpose, timeout_s)
        vectors = _vectors(part_of(answer, "data"), len(texts))
    except (CallFailed, NodeFailed):
        raise
    except Exception as error:
        raise from_error(error, clean) from error
    usage = part_of(answer, "usage")
    tokens = part_of(usage, "prompt_tokens") or part_of(usage, "total_tokens") or 0
    return EmbeddedTexts(vectors, tokens, prices.embedding_cost_usd(endpoint, tokens) if tokens else None)


def settings(endpoint: Endpoint, purpose: Purpose) -> dict[str, Any]:
    """The parameters of a call: the same texts with the same parameters have the same vectors."""
    parameters: dict[str, Any] = {"model": endpoint.model, **_purpose(endpoint, purpose)}
    return {**parameters, **{name: value for name, value in endpoint.traits.patch_body.items() if value is not None}}


def max_input_tokens(endpoint: Endpoint) -> int | None:
    """The maximum tokens of a text; None if neither config.yaml nor litellm's list has it."""
    listed = (litellm_compat.listed(endpoint.model, "embedding") or {}).get("max_input_tokens")
    return endpoint.traits.max_input_tokens or (int(listed) if listed else None)


def most_texts(endpoint: Endpoint) -> int:
    """The maximum number of texts per call."""
    return MOST_TEXTS.get(endpoint.model.partition("/")[0], MOST_TEXTS_ELSEWHERE)


def _purpose(endpoint: Endpoint, purpose: Purpose) -> dict[str, str]:
    provider = endpoint.model.partition("/")[0]
    if endpoint.speaks_openai:
        by_host = _BY_HOST.get(urlsplit(endpoint.api_base or "").hostname or "")
        return {} if by_host is None else {by_host[0]: by_host[1][purpose]}
    if provider in ("gemini", "vertex_ai"):
        return {"task_type": _GOOGLE[purpose]}
    return {"input_type": _COHERE[purpose]} if "cohere" in endpoint.model.lower() else {}


def _over_http(endpoint: Endpoint, texts: Sequence[str], purpose: Purpose, timeout_s: float) -> Mapping[str, Any]:
    from sleipnir_workers.llm.json_http import RequestRefused  # lazy: workers without models have no urllib3

    base = transport.openai_base(endpoint)
    headers = transport.openai_headers(endpoint)
    address = transport.address_of(endpoint, f"{base.rstrip('/')}/embeddings", headers=headers, timeout_s=timeout_s)
    body = {
        "encoding_format": "base64",
        **settings(endpoint, purpose),
        "model": endpoint.model.removeprefix("openai/"),
        "input": list(texts),
    }
    with _refused_lock:
        refuses_base64 = base in _takes_no_base64
    if refuses_base64:
        del body["encoding_format"]
    try:
        return address.post(body)
    except RequestRefused as error:
        if refuses_base64 or error.status_code not in (400, 422) or "encoding_format" not in str(error):
            raise
    with _refused_lock:
        _takes_no_base64.add(base)
    del body["encoding_format"]
    return address.post(body)


def _by_litellm(endpoint: Endpoint, texts: Sequence[str], purpose: Purpose, timeout_s: float) -> Any:
    return litellm_compat.embedding(
        **settings(endpoint, purpose),
        input=list(texts),
        api_base=endpoint.api_base,
        api_key=endpoint.api_key,
        timeout=timeout_s,
        extra_headers=dict(endpoint.traits.patch_headers) or None,
        **endpoint.options,
    )


def _vectors(data: Any, count: int) -> list[bytes]:
    """The vectors of an answer in the order of their texts. Raises CallFailed for an incomplete answer."""
    if not isinstance(data, list) or len(data) != count:
        held = len(data) if isinstance(data, list) else "no"
        raise CallFailed(f"the model's answer holds {held} vectors for {count} texts")
    numbers = [part_of(entry, "index") for entry in data]
    numbers = [at if number is None else number for at, number in enumerate(numbers)]
    if sorted(numbers) != list(range(count)):
        raise CallFailed(f"the model's answer numbers its {count} vectors wrongly")
    vectors = {number: _vector(part_of(entry, "embedding")) for number, entry in zip(numbers, data, strict=True)}
    return [vectors[number] for number in range(count)]


def _vector(value: Any) -> bytes:
    """One vector, from base64 or from numbers."""
    try:
        content = base64.b64decode(value, validate=True) if isinstance(value, str) else _packed(value)
    except (TypeError, OverflowError, binascii.Error) as error:
        raise CallFailed(f"the model's answer holds what is no vector: {str(value)[:60]!r}") from error
    if not content or len(content) % 4:
        raise CallFailed(f"the model's answer holds a vector of {len(content)} bytes, which are no 32-bit numbers")
    return content


def _packed(numbers: Sequence[float]) -> bytes:
    packed = array("f", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
