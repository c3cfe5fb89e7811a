"""Model limits for all workers of a deployment together: `limits.yaml` and its meaning.

Rules.
1. A limit applies to all models that its pattern matches, together. Every limit that matches a model applies to its
calls.
2. All problems of a file are found in one pass. Unknown keys are a warning; with an error, no limit of the file
applies.
3. This module has no effects: the current use is in Redis (sleipnir/store/limits.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from sleipnir.agents.config_directory import config_dir
from sleipnir.errors import ConfigError, Problem, UsageError
from sleipnir.graph.findings import Findings, closest, in_file_order, suggestion
from sleipnir.graph.source import read
from sleipnir.messages import VERSION
from sleipnir.settings import Settings

LIMITS_FILE: Final = "limits.yaml"
TOOL: Final = "tool:"
"""What the patterns of tools begin with, where they stand beside those of models."""
MOST_REASON: Final = 500
MOST: Final = 10**12  # sums over a window stay exact in Lua's numbers

Cause: TypeAlias = Literal["requests", "tokens", "parallel", "cooling"]


@dataclass(frozen=True)
class Limit:
    """The limits of all models whose ids match `pattern`, together; or of all tools whose names do, behind `tool:`.
    None: no limit."""

    pattern: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel: int | None = None

    @property
    def is_of_tools(self) -> bool:
        return self.pattern.startswith(TOOL)

    def matches(self, model: str) -> bool:
        """`*` matches any text, including none; all other characters match themselves."""
        first, *others = self.pattern.split("*")
        if not others:
            return model == first
        *middle, last = others
        if not model.startswith(first) or not model.endswith(last) or len(model) < len(first) + len(last):
            return False
        at, end = len(first), len(model) - len(last)
        for part in middle:  # the first place of each part leaves most to the others
            position = model.find(part, at, end)
            if position < 0:
                return False
            at = position + len(part)
        return True

    @property
    def specificity(self) -> tuple[bool, int]:
        """Greater for a more specific pattern: one without `*`, then the longer one."""
        return "*" not in self.pattern, len(self.pattern.replace("*", ""))


@dataclass(frozen=True)
class LimitChange:
    """The bounds that a person has set in the place of those of limits.yaml; None: as written there."""

    by: str
    at_ms: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel: int | None = None
    reason: str = ""
    v: int = VERSION

    @property
    def bounds(self) -> dict[str, int]:
        """The bounds that are set."""
        return {name: value for name in _BOUNDS if (value := getattr(self, name)) is not None}

    def applied(self, limit: Limit) -> Limit:
        """The limit with these bounds."""
        return Limit(limit.pattern, **{name: getattr(limit, name) for name in _BOUNDS} | self.bounds)


@dataclass(frozen=True)
class ModelLimits:
    """All limits of a deployment. (Those of a graph are graph.model.Limits.)"""

    limits: tuple[Limit, ...] = ()

    def matching(self, *spellings: str) -> tuple[Limit, ...]:
        """The limits of a model, the most specific first. `spellings` are ids of one model (`claude:x`,
        `anthropic:x`)."""
        limits = [limit for limit in self.limits if not limit.is_of_tools and any(map(limit.matches, spellings))]
        return tuple(sorted(limits, key=lambda limit: limit.specificity, reverse=True))

    def of_tool(self, name: str) -> tuple[Limit, ...]:
        """The limits of a tool, the most specific first."""
        limits = [limit for limit in self.limits if limit.is_of_tools and limit.matches(f"{TOOL}{name}")]
        return tuple(sorted(limits, key=lambda limit: limit.specificity, reverse=True))


@dataclass(frozen=True)
class LoadedLimits:
    """The parsed file. `limits` is None if `problems` has an error; problems are in file order."""

    limits: ModelLimits | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class GrantedPermit:
    """The call may be made now. `holder` has a permit in each of `limits`: renew it, and release it at the end."""

    limits: tuple[Limit, ...]
    holder: str


@dataclass(frozen=True)
class LimitReached:
    """The call may not be made now: retry at `retry_at_ms`, by Redis' clock. A normal outcome.

    `limit` is the one that allows it last, because of `cause`, of which `used` is used; `ahead` callers are before it.
    `holders` are up to three holders of permits, `bound` is the bound that holds now; 0: that of `limit`.
    """

    limit: Limit
    cause: Cause
    retry_at_ms: int
    ahead: int = 0
    used: int = 0
    holders: tuple[str, ...] = ()
    bound: int = 0

    @property
    def reason(self) -> str:
        """`limit 'openai:*' until 14:03:11 UTC, held by 600 of 600 requests per minute; 12 callers come first`."""
        until = datetime.fromtimestamp(math.ceil(self.retry_at_ms / 1000), UTC).strftime("%H:%M:%S")
        line = f"; {_counted(self.ahead, 'caller')} come{'s' if self.ahead == 1 else ''} first" if self.ahead else ""
        return f"limit {self.limit.pattern!r} until {until} UTC, held by {self._held_by()}{line}"

    def _held_by(self) -> str:
        match self.cause:
            case "requests":
                requests = self.bound or self.limit.requests_per_minute or 0
                return f"{self.used:,} of {_counted(requests, 'request')} per minute"
            case "tokens":
                return (
                    f"{self.used:,} of {_counted(self.bound or self.limit.tokens_per_minute or 0, 'token')} per minute"
                )
            case "cooling":
                return "the provider, which asked for a pause"
            case "parallel":
                more = self.used - len(self.holders)
                return (", ".join(self.holders) or "no call yet") + (f" and {more:,} more" if more > 0 else "")


@dataclass(frozen=True)
class HeldPermit:
    """A permit that is held. `until_ms` is the end of its lease, unless it is renewed."""

    holder: str
    until_ms: int


@dataclass(frozen=True)
class LimitUse:
    """The use of a limit at `at_ms`: calls and tokens of the last minute, permits, and the number of waiting
    callers. `limit` has the bounds that hold now; with a `change`, `written` has those of limits.yaml."""

    limit: Limit
    at_ms: int
    requests: int = 0
    tokens: int = 0
    slots: tuple[HeldPermit, ...] = ()
    waiting: int = 0
    cooling_until_ms: int | None = None
    change: LimitChange | None = None
    written: Limit | None = None


def check_change(limit: Limit, bounds: Mapping[str, int]) -> None:
    """Raises UsageError for bounds that a limit cannot be given at run time."""
    if not bounds:
        raise UsageError("give a bound: requests a minute, tokens a minute or parallel calls")
    for name, value in bounds.items():
        if type(value) is not int or not 1 <= value <= MOST:
            raise UsageError(
                f"{name} of limit {limit.pattern!r} must be a whole number from 1 to {MOST:,}, not {value!r:.60}"
            )
    if limit.is_of_tools and "tokens_per_minute" in bounds:
        raise UsageError(f"calls of tools have no tokens: {limit.pattern!r} can have no tokens_per_minute")


def named(limits: ModelLimits, pattern: str) -> Limit:
    """The limit of this pattern. Raises UsageError, which names those that there are."""
    for limit in limits.limits:
        if limit.pattern == pattern:
            return limit
    known = ", ".join(repr(limit.pattern) for limit in limits.limits) or "none; limits.yaml names them"
    raise UsageError(f"no limit {pattern!r:.200}; there are: {known}")


def parse(text: str, file: str) -> LoadedLimits:
    """The limits in a text. `file` is its name in problems. Never raises."""
    if _says_nothing(text):
        return LoadedLimits(ModelLimits(), ())
    document = read(text, file)
    findings = Findings(file, document.positions, document.problems)
    limits = _limits(document.data, findings) if document.readable else None
    if findings.has_errors:
        limits = None
    return LoadedLimits(limits, tuple(in_file_order(findings.problems)))


def limits_file(settings: Settings) -> Path:
    """The path of the limits of a deployment."""
    return settings.limits or config_dir() / LIMITS_FILE


def load(settings: Settings) -> tuple[ModelLimits, tuple[Problem, ...]]:
    """The limits of a deployment, and warnings. No file: no limits, unless the settings name one.

    Raises ConfigError with every error of the file.
    """
    file = limits_file(settings)
    if settings.limits is None and not file.exists():
        return ModelLimits(), ()
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the limits of models at {str(file)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read the limits of models at {str(file)!r}: byte {error.start} is not UTF-8"
        ) from error
    loaded = parse(text, str(file))
    if loaded.limits is None:
        errors = "".join(f"\n  {problem}" for problem in loaded.problems if problem.level == "error")
        raise ConfigError(f"the limits of models cannot be used{errors}")
    return loaded.limits, loaded.problems


def retry_after_ms(header: str, now_s: float) -> int | None:
    """The seconds of a Retry-After header, which has a number of seconds or a date (`now_s` is our time). None if it is
    neither; never below 0."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).replace(tzinfo=UTC).timestamp() - now_s
        except ValueError:
            return None
    return math.ceil(max(0.0, seconds) * 1000) if math.isfinite(seconds) else None


def estimated_tokens(characters: int, answer_tokens: int) -> int:
    """The estimated tokens of a call: its messages, at four characters per token, and the maximum length of its
    answer."""
    return -(-characters // 4) + answer_tokens


_BOUNDS: Final = tuple(field.name for field in fields(Limit) if field.name != "pattern")
_TOP: Final = "models"
_TOOLS: Final = "tools"
_EXAMPLE: Final = "Write patterns of model ids, each with its bounds:  models: {'openai:*': {requests_per_minute: 600}}"


def _limits(data: Any, findings: Findings) -> ModelLimits:
    if not isinstance(data, dict):
        findings.error((), f"the file must be a mapping with the key '{_TOP}'", _EXAMPLE)
        return ModelLimits()
    for key in data:
        if key not in (_TOP, _TOOLS):
            findings.warning((key,), f"unknown key '{key}' is ignored", _hint_for_top_key(key))
    limits: list[Limit] = []
    for top in (_TOP, _TOOLS):
        patterns = data.get(top)
        if patterns is not None and not isinstance(patterns, dict):
            findings.error((top,), f"'{top}' must be a mapping of patterns to bounds", _EXAMPLE)
        elif patterns is not None:
            limits += [_limit(top, str(pattern), bounds, findings) for pattern, bounds in patterns.items()]
    return ModelLimits(tuple(limits))


def _hint_for_top_key(key: str) -> str | None:
    if ":" in key or "*" in key:
        return f"If it is a pattern of models, indent it below '{_TOP}:'."
    return suggestion(key, [_TOP, _TOOLS], "keys")


def _limit(top: str, pattern: str, bounds: Any, findings: Findings) -> Limit:
    path = (top, pattern)
    if top == _TOOLS:
        name = f"{TOOL}{pattern}"
        if isinstance(bounds, dict) and bounds.get("tokens_per_minute") is not None:
            findings.error((*path, "tokens_per_minute"), "calls of tools have no tokens", "Remove this bound.")
    else:
        name = pattern
    if top == _TOP and pattern.startswith(TOOL):
        findings.error(path, f"'{pattern}' is no pattern of models", f"Write limits of tools below '{_TOOLS}:'.")
    elif top == _TOP and ":" not in pattern and "*" not in pattern:
        hint = f"Write 'client:model', for example 'openai:{pattern}', or use `*` for any text."
        findings.error(path, f"'{pattern}' matches no model: their ids are written client:model", hint)
    if not isinstance(bounds, dict):
        findings.error(path, f"the limit of '{pattern}' must be a mapping", f"Its keys are: {', '.join(_BOUNDS)}.")
        return Limit(name)
    bound_of: dict[str, int] = {}
    for key, value in bounds.items():
        if key not in _BOUNDS:
            findings.warning((*path, key), f"unknown key '{key}' is ignored", suggestion(key, _BOUNDS, "keys"))
        elif _is_bound(value):
            bound_of[key] = value
        elif value is not None:
            findings.error((*path, key), f"'{key}' must be a whole number from 1 to 10**12, not {value!r}", _LEAVE_OUT)
    if not bound_of and not any(closest(key, _BOUNDS) for key in bounds):
        findings.warning(path, f"the limit of '{pattern}' has no bounds", f"Its keys are: {', '.join(_BOUNDS)}.")
    return Limit(name, **bound_of)


_LEAVE_OUT: Final = "Omit keys without a bound."


def _is_bound(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST


def _says_nothing(text: str) -> bool:
    """Whether it has no YAML document, which is allowed here but not for a graph."""
    return all(line.split("#")[0].strip() in ("", "---", "...") for line in text.removeprefix("\ufeff").splitlines())


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
