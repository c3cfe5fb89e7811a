"""Hooks: `client.hooks`.

    made = client.hooks.add("issues", form="github", agent="triage", inputs={"title": "{{body.issue.title}}"})
    print(made.secret)

`receive` is for the server that takes the requests. A change is written with its entry of the audit, at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from sleipnir.access.audit import audit_text
from sleipnir.errors import ConfigError, HookNotFound, SleipnirError, StoreUnavailable, UsageError
from sleipnir.runs.cards import checked_namespace
from sleipnir.webhooks.hooks import (
    ID_FIELDS,
    ID_HEADERS,
    MOST_HOOKS,
    PER_MINUTE,
    Hook,
    HookReceipt,
    HookRequest,
    HookSecret,
    body_of,
    checked_hook,
    request_id,
    run_inputs,
    signal_name,
)
from sleipnir.webhooks.proofs import is_proved
from sleipnir.webhooks.signatures import SigningKeys, is_open_to_others, secret_text

if TYPE_CHECKING:
    from sleipnir.settings import Settings
    from sleipnir.store.access import Stored
    from sleipnir.store.store import Store

MOST_TRIES: Final = 20
"""Of a change that others come before."""
MOST_OVERLAP_S: Final = 30 * 86_400.0
MOST_FILE: Final = 64 * 1024


class HookRun(Protocol):
    """A run: client.Run."""

    id: str


class HookRefused(SleipnirError):
    """A request that is not taken: its proof is wrong (`is_forged`), or too many came. `retry_after_ms`: when another
    one is looked at; 0: at once."""

    def __init__(self, text: str, *, is_forged: bool, retry_after_ms: int = 0) -> None:
        super().__init__(text)
        self.is_forged, self.retry_after_ms = is_forged, retry_after_ms


@dataclass(frozen=True)
class NewHook:
    """`secret` proves who makes a request. It is stored nowhere, and shown this once; None: it is in a file."""

    hook: Hook
    secret: str | None = field(repr=False, default=None)


class Hooks:
    """The operations on hooks. Every one raises StoreUnavailable, RecordUnreadable for a damaged record, and
    HookNotFound for an unknown hook. `reason` is for the audit."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        by: str,
        submit: Callable[..., HookRun],
        send: Callable[..., object],
    ) -> None:
        """`submit` and `send` are Client.submit and Client.signal."""
        self._store, self._settings, self._by, self._submit, self._send = store, settings, by, submit, send

    def add(
        self,
        name: str,
        *,
        form: str = "standard",
        agent: str | None = None,
        signal: str | None = None,
        prompt: str | None = None,
        inputs: Mapping[str, str] | None = None,
        header: str = "",
        algorithm: str = "sha256",
        id_header: str | None = None,
        id_field: str | None = None,
        namespace: str | None = None,
        per_minute: int = PER_MINUTE,
        own_secret: bool = False,
        reason: str | None = None,
    ) -> NewHook:
        """A new hook, at `/hooks/NAME` of the HTTP API. Its requests start runs of `agent`, with `prompt` and `inputs`
        (state keys) rendered from `{{body...}}` and `{{headers...}}`, or send `signal` with the body as data.
        `own_secret`: the sender has chosen the secret, and it is in the file NAME of the folder SLEIPNIR_HOOK_SECRETS.
        Raises UsageError for a name that is taken and for what is invalid, ConfigError without a key."""
        if id_header is None and id_field is None:
            id_header, id_field = ID_HEADERS.get(form), ID_FIELDS.get(form)
        hook = checked_hook(Hook(
            str(name), secrets.token_hex(12), form, 0, self._by, header=header.lower(), algorithm=algorithm,
            agent=agent, signal=signal, prompt=prompt, inputs=dict(inputs or {}), id_header=id_header,
            id_field=id_field, namespace=None if namespace is None else checked_namespace(namespace),
            per_minute=per_minute, changed=_unique(),
        ))  # fmt: skip
        keys = None if own_secret else SigningKeys.of_file_or_new(self._settings.webhook_key_file)
        with self._store.errors():
            if self._store.hooks.count() >= MOST_HOOKS:
                raise UsageError(f"there are {MOST_HOOKS} hooks, and there may be no more")
            made = None if keys is None else HookSecret(secrets.token_hex(12), keys.newest)
            hook = replace(hook, created_ms=self._store.now_ms(), secrets=(made,) if made else ())
            entry = audit_text("hook added", f"hook {name}", self._by, after=_audited(hook), reason=reason)
            if not self._store.hooks.change(hook.name, None, hook, entry):
                raise UsageError(f"there is a hook {name!r} already")
        return NewHook(hook, _secret(keys, hook, made) if keys and made else None)

    def all(self) -> list[Hook]:
        """All hooks by name. One that cannot be read is left out: `get` says why."""
        with self._store.errors():
            return self._store.hooks.all()

    def get(self, name: str) -> Hook:
        """One of them."""
        return self._known(name).value

    def remove(self, name: str, *, reason: str | None = None) -> Hook:
        """Remove a hook: its requests are refused from now on."""
        return self._change(name, "hook removed", None, reason)

    def rotate(self, name: str, *, overlap_s: float = 0.0, reason: str | None = None) -> NewHook:
        """Give a hook a new secret. The one before it is valid for `overlap_s` seconds more. Raises UsageError if the
        sender has chosen the secret: change the file then."""
        if not 0 <= overlap_s <= MOST_OVERLAP_S:
            raise UsageError(f"the secret before is valid for at most {MOST_OVERLAP_S / 86_400:g} days more")
        if not self.get(name).secrets:
            raise UsageError(f"the sender has chosen the secret of hook {name!r}: write the new one into its file")
        keys = SigningKeys.of_file_or_new(self._settings.webhook_key_file)
        made = HookSecret(secrets.token_hex(12), keys.newest)
        hook = self._change(name, "hook rotated", (made, int(overlap_s * 1000)), reason)
        return NewHook(hook, _secret(keys, hook, made))

    def receive(self, name: str, request: HookRequest) -> HookReceipt:
        """Take a request to a hook: start its run, or send its signal. The same request again does nothing more, and
        gets the same receipt. Raises HookRefused for one with a wrong proof and for too many, UsageError for one that
        does not fit the hook, ConfigError if its secret is not known here."""
        hook = self._known(name).value
        with self._store.errors():
            now_ms = self._store.now_ms()
        if not is_proved(hook, request, self._secrets(hook, now_ms), now_ms):
            raise self._refused(hook, request)
        self._bound(hook)
        body = body_of(request)
        id_ = request_id(hook, request, body)
        if hook.agent is None:
            name_of_signal = signal_name(hook, request, body)
            self._send(name_of_signal, body, id=id_)
            return HookReceipt(hook.name, signal=name_of_signal, id=id_)
        prompt, state = run_inputs(hook, request, body)
        namespace: dict[str, Any] = {} if hook.namespace is None else {"namespace": hook.namespace}
        run = self._submit(hook.agent, prompt, state=state or None, request_id=id_, scratch=True, **namespace)
        return HookReceipt(hook.name, run=run.id)

    def _secrets(self, hook: Hook, now_ms: int) -> list[str]:
        """Those that are valid now. Raises ConfigError if this process knows none."""
        if not hook.secrets:
            return _of_file(self._settings.hook_secret_folder / hook.name)
        keys = SigningKeys.of_file(self._settings.webhook_key_file)
        valid = [each for each in hook.secrets if each.until_ms is None or each.until_ms > now_ms]
        known = [_secret(keys, hook, each) for each in valid if each.key in keys.by_id]
        if not known:
            raise ConfigError(f"the secret of hook {hook.name!r} is derived from key {valid[0].key}, which is not here")
        return known

    def _refused(self, hook: Hook, request: HookRequest) -> HookRefused:
        """Count a request with a wrong proof: only those slow down, so that no stranger keeps the sender out."""
        who = f"hook {hook.name} {request.address}"
        with self._store.errors():
            wait_ms = self._store.access.attempt(who, request.address, secrets.token_hex(8))
        text = "the proof of the request is wrong or too old: its signature, token or time"
        return HookRefused(text, is_forged=True, retry_after_ms=wait_ms)

    def _bound(self, hook: Hook) -> None:
        """Raises HookRefused if more requests came in this minute than the hook takes."""
        with self._store.errors():
            count, left_ms = self._store.hooks.count_request(hook.token)
        if count > hook.per_minute:
            text = f"hook {hook.name!r} takes {hook.per_minute:,} requests a minute"
            raise HookRefused(text, is_forged=False, retry_after_ms=left_ms)

    def _change(self, name: str, what: str, made: tuple[HookSecret, int] | None, reason: str | None) -> Hook:
        """Give a hook another secret, with the time for which the one before is valid, or remove it (None). Returns it
        as it is then, or as it was."""
        with self._store.errors():
            for _ in range(MOST_TRIES):
                was, now_ms = self._known(name), self._store.now_ms()
                after = None if made is None else _with_secret(was.value, *made, now_ms)
                shown = None if after is None else _audited(after)
                entry = audit_text(what, f"hook {name}", self._by, before=_audited(was.value), after=shown,
                                   reason=reason)  # fmt: skip
                if self._store.hooks.change(name, was, after, entry):
                    return after or was.value
        raise StoreUnavailable(f"hook {name!r} is being changed by others again and again")

    def _known(self, name: str) -> Stored[Hook]:
        with self._store.errors():
            found = self._store.hooks.get(name)
        if found is None:
            raise HookNotFound(f"there is no hook {name[:80]!r}; `sleipnir hooks ls` lists them")
        return found


def _with_secret(hook: Hook, made: HookSecret, overlap_ms: int, now_ms: int) -> Hook:
    """The hook with a new secret. Of those before it only the newest one is valid for some time more."""
    before = (replace(hook.secrets[0], until_ms=now_ms + overlap_ms),) if overlap_ms else ()
    return replace(hook, secrets=(made, *before), changed=_unique())


def _secret(keys: SigningKeys, hook: Hook, of: HookSecret) -> str:
    secret = keys.secret(of.key, f"hook {hook.token} {of.salt}")
    assert secret is not None, "the key is there"
    return secret_text(secret)


def _of_file(file: Path) -> list[str]:
    """The secrets of a file, one a line. Raises ConfigError."""
    try:
        if is_open_to_others(file):
            raise ConfigError(f"others can read or change the secret of a hook: run `chmod 600 {file}`")
        with file.open(encoding="utf-8") as opened:
            lines = [line.strip() for line in opened.read(MOST_FILE).splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"cannot read the secret of a hook at {file}: {error.strerror}") from None
    except UnicodeError:
        lines = []
    if not lines:
        raise ConfigError(f"the file {file} has no secret of a hook: each line is one")
    return lines


def _audited(hook: Hook) -> dict[str, Any]:
    """What the audit has of a hook."""
    fields = {
        "form": hook.form, "agent": hook.agent, "signal": hook.signal, "inputs": sorted(hook.inputs),
        "namespace": hook.namespace, "per_minute": hook.per_minute, "secrets": len(hook.secrets),
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _unique() -> str:
    return secrets.token_hex(6)
