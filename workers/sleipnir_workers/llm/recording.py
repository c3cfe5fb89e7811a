"""Answers that are recorded, and answers from a recording (docs/testing.md, sleipnir/testing/tape.py).

Rules. A process has one tape, as its settings say. A request is written down as the graph makes it: the model's id, the
messages and the tools, before anything that config.yaml says of the model is done to them. So a replay needs neither a
key nor litellm. A streamed answer is kept joined, and replayed as one piece of text. No secret of this worker is
written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sleipnir.errors import ConfigError
from sleipnir_workers.host import Host
from sleipnir_workers.keyring import keyring_of
from sleipnir_workers.llm.clients import clients_of
from sleipnir_workers.llm.reply import Answer, AnswerCollector, MalformedReply, Message

if TYPE_CHECKING:
    from sleipnir.testing.tape import Tape

_TOKENS: Mapping[str, str] = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}

_lock = threading.Lock()
_tapes: dict[tuple[Path | None, Path | None], Tape] = {}


def tape_of(host: Host) -> Tape | None:
    """The tape of this process, which counts how often each request was made. Raises ConfigError."""
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
) -> dict[str, Any]:
    """What a tape knows a call by. `model` is its id, as graphs write it."""
    asked = {
        "model": model,
        "messages": [dict(message) for message in messages],
        "tools": [dict(tool) for tool in tools],
    }
    # Not with null: recordings that are older than the parameter are found too.
    effort = {} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}
    return {**asked, "temperature": temperature, "top_p": top_p, **effort}


def written(answer: Answer, model: str) -> dict[str, Any]:
    """The answer as a tape keeps it, in the form of OpenAI's protocol."""
    usage = {"prompt_tokens": answer.input_tokens, "completion_tokens": answer.output_tokens}
    choice = {"index": 0, "message": dict(answer.message), "finish_reason": answer.finish}
    return {"object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


def replayed(recorded: Mapping[str, Any]) -> Answer:
    """The answer that a tape has kept. It has the tokens of the recording, and cost nothing. Raises ConfigError."""
    reply = AnswerCollector()
    try:
        choice, usage = recorded["choices"][0], recorded.get("usage") or {}
        reply.add(choice["message"])
        reply.finish = choice.get("finish_reason")
        tokens = {name: int(usage.get(key) or 0) for name, key in _TOKENS.items()}
        return reply.answer("replay", **tokens, cost_usd=0.0)
    except (LookupError, TypeError, ValueError, AttributeError, MalformedReply) as error:
        raise ConfigError(f"a recorded answer of '{recorded.get('model')}' cannot be used: {error!r}") from error


def _opened(host: Host) -> Tape:
    from sleipnir.testing.tape import Tape  # brings a server, which no worker needs otherwise

    def clean(text: str) -> str:
        keys, configured = keyring_of(host), clients_of(host)  # as the files are now
        return keys.clean(text, configured.literal_keys | configured.secrets(keys.env))

    tape = Tape.of(host.settings, clean)
    assert tape is not None
    return tape
