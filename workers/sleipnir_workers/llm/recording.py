"""Recording and replay of answers (docs/testing.md, sleipnir/testing/tape.py).

Rules. A process has one tape, by its settings. A request is recorded as the graph makes it: the model's id, the
messages and the tools, before the settings of config.yaml apply. So a replay needs neither a key nor litellm. A
streamed answer is recorded whole, and replayed as one piece of text. No secret of this worker is written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sleipnir.errors import ConfigError
from sleipnir_workers.llm.chat_request import NO_SETTINGS
from sleipnir_workers.llm.clients import clients_of
from sleipnir_workers.llm.reply import Answer, AnswerCollector, MalformedReply, Message
from sleipnir_workers.machine.host import Host
from sleipnir_workers.machine.keyring import keyring_of

if TYPE_CHECKING:
    from sleipnir.testing.tape import Tape

_TOKENS: Mapping[str, str] = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}

_lock = threading.Lock()
_tapes: dict[tuple[Path | None, Path | None], Tape] = {}


def tape_of(host: Host) -> Tape | None:
    """The tape of this process, which counts the repetitions of each request. Raises ConfigError."""
    settings = host.settings
    if settings.record is None and settings.replay is None:
        return None
    key = settings.record, settings.replay
    with _lock:
        if key not in _tapes:
            _tapes[key] = _opened(host)
        return _tapes[key]


def request(
    model: str,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    temperature: float | None,
    top_p: float | None,
    reasoning_effort: str | None = None,
    generation: Mapping[str, Any] = NO_SETTINGS,
) -> dict[str, Any]:
    """The request by which a tape finds a call. `model` is its id in graphs."""
    fields = {
        "model": model,
        "messages": [dict(message) for message in messages],
        "tools": [dict(tool) for tool in tools],
    }
    # Absent, not null: recordings that are older than the parameter still match.
    effort = {} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}
    return {**fields, "temperature": temperature, "top_p": top_p, **effort, **generation}


def recorded(answer: Answer, model: str) -> dict[str, Any]:
    """The answer in the form of a tape, which is that of OpenAI's protocol."""
    usage = {"prompt_tokens": answer.input_tokens, "completion_tokens": answer.output_tokens}
    choice = {"index": 0, "message": dict(answer.message), "finish_reason": answer.finish}
    return {"object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


def replayed(recording: Mapping[str, Any]) -> Answer:
    """A recorded answer, with the recorded tokens and at no cost. Raises ConfigError."""
    reply = AnswerCollector()
    try:
        choice, usage = recording["choices"][0], recording.get("usage") or {}
        reply.add(choice["message"])
        reply.finish = choice.get("finish_reason")
        tokens = {name: int(usage.get(key) or 0) for name, key in _TOKENS.items()}
        return reply.answer("replay", **tokens, cost_usd=0.0)
    except (LookupError, TypeError, ValueError, AttributeError, MalformedReply) as error:
        raise ConfigError(f"a recorded answer of '{recording.get('model')}' cannot be used: {error!r}") from error


def _opened(host: Host) -> Tape:
    from sleipnir.testing.tape import Tape  # lazy: it imports a server that no worker needs

    def clean(text: str) -> str:
        keys, configured = keyring_of(host), clients_of(host)  # from the current files
        return keys.clean(text, configured.literal_keys | configured.secrets(keys.env))

    tape = Tape.of(host.settings, clean)
    assert tape is not None
    return tape
