"""Hooks: the addresses at which other programs tell us what happens there, and what a request to one does.

A request starts a run of an agent, or sends a signal. Its body and its headers are values for templates.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from sleipnir.errors import UsageError
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.graph.signal_names import name_problem
from sleipnir.graph.template import PLACEHOLDER, TemplateError, lookup, malformed, render, render_typed

HookForm: TypeAlias = Literal["standard", "github", "stripe", "token"]
FORMS: Final[tuple[HookForm, ...]] = get_args(HookForm)
"""How a request proves who has made it (proofs.py)."""
HEADERS: Final[Mapping[str, str]] = {
    "standard": "webhook-signature", "github": "x-hub-signature-256", "stripe": "stripe-signature",
    "token": "authorization",
}  # fmt: skip
"""Where its proof is, if the hook names no other header."""
ID_HEADERS: Final[Mapping[str, str]] = {"standard": "webhook-id", "github": "x-github-delivery"}
ID_FIELDS: Final[Mapping[str, str]] = {"stripe": "id"}
ALGORITHMS: Final = ("sha256", "sha512")

MOST_HOOKS: Final = 100
MOST_INPUTS: Final = 50
MOST_TEMPLATE: Final = 10_000
MOST_ID: Final = 1_000
PER_MINUTE: Final = 600

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEADER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]]{0,199}")
_HIDDEN: Final = frozenset(("authorization", "cookie", "proxy-authorization"))


@dataclass(frozen=True)
class HookSecret:
    """What a secret is derived from: a random text and the id of a key. After `until_ms` it proves nothing more; None:
    it is the newest one."""

    salt: str
    key: str
    until_ms: int | None = None


@dataclass(frozen=True)
class Hook:
    """A hook. `token` tells it from others that had its name. `secrets` are what its proofs are compared with, the
    newest first; none: they are in a file (client/hook_secrets.py). It starts a run of `agent` or sends `signal`.
    `prompt` and `inputs` are templates. A request is known by its `id_header`, or by `id_field` of its body."""

    name: str
    token: str
    form: str
    created_ms: int
    created_by: str
    secrets: tuple[HookSecret, ...] = ()
    header: str = ""
    algorithm: str = "sha256"
    agent: str | None = None
    signal: str | None = None
    prompt: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    id_header: str | None = None
    id_field: str | None = None
    namespace: str | None = None
    per_minute: int = PER_MINUTE
    changed: str = ""
    v: int = 1

    @property
    def proof_header(self) -> str:
        """The header that has the proof of a request, in small letters."""
        return self.header or HEADERS[self.form]


@dataclass(frozen=True)
class HookRequest:
    """A request to a hook. The names of `headers` are in small letters. `address` is where it comes from."""

    body: bytes
    headers: Mapping[str, str]
    address: str = ""


@dataclass(frozen=True)
class HookReceipt:
    """What a request has done: the id of its run, or of the signal that it has sent. The same again for the same
    request."""

    hook: str
    run: str | None = None
    signal: str | None = None
    id: str | None = None


def checked_hook(hook: Hook) -> Hook:
    """Raises UsageError for a hook that makes no sense."""
    if not _NAME.fullmatch(hook.name):
        raise UsageError(f"{hook.name!r:.80} cannot name a hook: up to 64 letters, digits, '.', '_' and '-' can")
    if hook.form not in FORMS:
        raise UsageError(f"{hook.form!r:.60} is no form of proof: {', '.join(FORMS)} are")
    if hook.algorithm not in ALGORITHMS:
        raise UsageError(f"{hook.algorithm!r:.60} is no algorithm of signatures: {', '.join(ALGORITHMS)} are")
    if hook.algorithm != "sha256" and hook.form != "github":
        raise UsageError(f"signatures of the form {hook.form} have sha256: only github has other algorithms")
    if (hook.agent is None) == (hook.signal is None):
        raise UsageError("a hook starts runs of an agent or sends a signal: name one of the two")
    if hook.signal is not None and (hook.prompt is not None or hook.inputs):
        raise UsageError("a hook that sends a signal has no inputs: the body is the data of the signal")
    if hook.signal is not None and PLACEHOLDER.search(hook.signal) is None and (wrong := name_problem(hook.signal)):
        raise UsageError(wrong)
    for header in (hook.header, hook.id_header):
        if header and not _HEADER.fullmatch(header):
            raise UsageError(f"{header!r:.80} is no name of a header")
    if hook.id_field is not None and not _PATH.fullmatch(hook.id_field):
        raise UsageError(f"{hook.id_field!r:.80} is no path in a body: write names with dots between, as `event.id`")
    if hook.id_header is None and hook.id_field is None:
        raise UsageError("say how a request is known when it comes again: by a header or by a field of its body")
    if not 1 <= hook.per_minute <= 1_000_000:
        raise UsageError("a hook takes 1 to 1,000,000 requests a minute")
    if len(hook.inputs) > MOST_INPUTS:
        raise UsageError(f"a hook has {MOST_INPUTS} inputs at most")
    for text in (hook.agent, hook.prompt, hook.namespace, *hook.inputs, *hook.inputs.values()):
        if text is not None and text.encode(errors="ignore").decode() != text:
            raise UsageError(f"{text!r:.80} holds half of a surrogate pair, which cannot be stored")
    for template in (hook.prompt, hook.signal, *hook.inputs.values()):
        _check_template(template or "")
    return hook


def _check_template(template: str) -> None:
    if len(template) > MOST_TEMPLATE:
        raise UsageError(f"a template of a hook has {MOST_TEMPLATE:,} characters at most")
    if wrong := malformed(template):
        raise UsageError(f"{wrong!r} is no placeholder: write {{{{body.field}}}} or {{{{headers.name}}}}")
    for path in PLACEHOLDER.findall(template):
        if re.split(r"[.\[]", path)[0] not in ("body", "headers"):
            raise UsageError(f"{{{{{path}}}}} is not in a request: {{{{body...}}}} and {{{{headers...}}}} are")


def body_of(request: HookRequest) -> Any:
    """The body as JSON. Raises UsageError."""
    try:
        body = json.loads(request.body)
        compact_json(body).encode()  # half of a surrogate pair, also in a key, cannot be stored
    except (ValueError, RecursionError):
        raise UsageError("the body of a request to a hook is JSON") from None
    if problem := first_not_json({"body": body}):
        raise UsageError(f"the body of a request to a hook is JSON: {problem}")
    return body


def request_id(hook: Hook, request: HookRequest, body: Any) -> str:
    """What names a request for `submit` and `signal`: the same for the same request. Raises UsageError for one without
    an id."""
    if hook.id_header is not None:
        given: Any = request.headers.get(hook.id_header.lower())
        place = f"header {hook.id_header}"
    else:
        given = lookup(f"body.{hook.id_field}", {"body": body})
        place = f"field {hook.id_field} of the body"
    if isinstance(given, bool) or not isinstance(given, (str, int)) or not str(given).strip():
        raise UsageError(f"a request to this hook has an id in the {place}")
    if len(str(given)) > MOST_ID:
        raise UsageError(f"the id of a request has {MOST_ID:,} characters at most")
    return f"hook:{hook.token}:{hashlib.sha256(str(given).encode()).hexdigest()[:40]}"


def run_inputs(hook: Hook, request: HookRequest, body: Any) -> tuple[str, dict[str, Any]]:
    """The prompt and the initial values of a run. Without templates the prompt is the body. Raises UsageError if a
    value is missing."""
    values = _values(hook, request, body)
    try:
        prompt = "" if hook.prompt is None else render(hook.prompt, values)
        state = {key: render_typed(template, values) for key, template in hook.inputs.items()}
    except TemplateError as missing:
        raise UsageError(f"the request does not fit the inputs of the hook: {missing}") from None
    if hook.prompt is None and not hook.inputs:
        prompt = compact_json(body)
    return prompt, state


def signal_name(hook: Hook, request: HookRequest, body: Any) -> str:
    """The name of the signal that a request sends. Raises UsageError if a value is missing."""
    try:
        return render(hook.signal or "", _values(hook, request, body))
    except TemplateError as missing:
        raise UsageError(f"the request does not fit the signal of the hook: {missing}") from None


def _values(hook: Hook, request: HookRequest, body: Any) -> dict[str, Any]:
    """What templates see: the body, and the headers but those with credentials, with `_` for `-`."""
    hidden = _HIDDEN | {hook.proof_header.lower()}
    headers = {name.replace("-", "_"): value for name, value in request.headers.items() if name not in hidden}
    return {"body": body, "headers": headers}
