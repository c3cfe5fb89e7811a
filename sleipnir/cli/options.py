"""The global options, and the settings and client that result from them."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sleipnir.client.client import Client
    from sleipnir.settings import Settings


COUNT_MOST = 2**31


class Count(click.IntRange):
    """A count that fits into 64 bits, which a mistyped number may exceed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number > COUNT_MOST:
            self.fail(f"{str(value)[:40]} is more than {COUNT_MOST:,}.", param, ctx)
        return number


COUNT, COUNT_OR_NONE = Count(min=1), Count(min=0)


class Amount(click.FloatRange):
    """A range of finite floats: comparisons alone do not exclude `inf` and `nan`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Seconds(Amount):
    """Seconds, as a number or with a unit: `30`, `30s`, `5m`, `2h`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from sleipnir.graph.duration import seconds

        try:
            read = float(seconds(value))  # type: ignore[arg-type]  # what is no number raises
        except (ValueError, TypeError):
            self.fail(f"{str(value)[:40]!r} is not a duration; write 30s, 5m, 2h or a number of seconds.", param, ctx)
        return super().convert(read, param, ctx)


class Moment(click.ParamType[Any]):
    """A time, in milliseconds since the epoch: an age (`90s`, `2h`, `3d`), or a local date and time."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        import time
        from datetime import datetime

        from sleipnir.graph.duration import milliseconds

        if isinstance(value, int):
            return value
        days = value[:-1] if value.endswith("d") and value[:-1].isdecimal() else None
        with contextlib.suppress(ValueError):
            ago_ms = milliseconds(f"{int(days) * 24}h") if days and len(days) < 7 else _with_unit(milliseconds, value)
            return max(0, int(time.time() * 1000) - ago_ms)
        with contextlib.suppress(ValueError, OverflowError):
            return max(0, int(datetime.fromisoformat(value).timestamp() * 1000))
        self.fail(f"{value[:40]!r} is neither a time ago (90s, 2h, 3d) nor a date (2026-11-22, 2026-11-22T10:00).")


MOMENT = Moment()


def _with_unit(read: Callable[[object], int], text: str) -> int:
    """Digits without a unit are not an age, because they may be meant as a date. Raises ValueError."""
    if text.strip()[-1:].isdigit():
        raise ValueError(text)
    return read(text)


@dataclass(frozen=True)
class GlobalOptions:
    """The global options, and the folder in which `run` records or replays the models' answers. None: not given, the
    environment or the default applies."""

    agents_dir: Path | None = None
    home: Path | None = None
    redis_url: str | None = None
    verbose: int = 0
    record: Path | None = None
    replay: Path | None = None

    def settings(self) -> Settings:
        """The settings of this command. Raises ConfigError."""
        from sleipnir.settings import Settings

        return Settings.from_env(**self._overrides())

    @contextlib.contextmanager
    def connected(self, *, workers: bool) -> Iterator[Client]:
        """A client of the deployment at the Redis URL, or of the private stack when there is none.

        `workers=False` is for commands that only read or write records: of the private stack they start only its Redis.
        """
        settings = self.settings()
        with contextlib.ExitStack() as stack:
            if settings.redis_url is None:
                from sleipnir.local.stack import stack as private_stack

                settings = stack.enter_context(private_stack(settings, workers=workers))
            _import_client()
            from sleipnir import tracing
            from sleipnir.client.client import Client
            from sleipnir.runs.actor import Actor

            tracing.configure("sleipnir")
            yield stack.enter_context(Client(settings, by=Actor.here("cli")))

    @contextlib.contextmanager
    def connected_if_up(self) -> Iterator[Client | None]:
        """A client of a running stack; None if one would have to be started."""
        _import_client()
        from sleipnir import tracing
        from sleipnir.client.client import Client
        from sleipnir.local.home import Home
        from sleipnir.runs.actor import Actor

        settings = self.settings()
        if settings.redis_url is None:
            home = Home(settings.home.absolute())
            if home.running() is None:
                yield None
                return
            settings = settings.replaced(redis_url=home.redis_url)
        tracing.configure("sleipnir")
        with Client(settings, by=Actor.here("cli")) as client:
            yield client

    @property
    def is_embedded(self) -> bool:
        """Whether commands use the private stack, which stops when it is not in use."""
        return self.settings().redis_url is None

    def command(self, *words: str) -> str:
        """A `sleipnir` command line for the same stack as this one; a password is left out."""
        from sleipnir.store.address import safe_url

        flags: list[str] = []
        if self.agents_dir is not None:
            flags += ["--agents-dir", str(self.agents_dir)]
        if self.home is not None:
            flags += ["--home", str(self.home)]
        if self.redis_url is not None:
            flags += ["--redis-url", safe_url(self.redis_url)]
        return shlex.join(["sleipnir", *flags, *words])

    def _overrides(self) -> dict[str, Any]:
        given = {
            "agents_dir": self.agents_dir,
            "home": self.home,
            "redis_url": self.redis_url,
            "record": self.record,
            "replay": self.replay,
            "log_level": (None, "debug", "trace")[min(self.verbose, 2)],
        }
        return {name: value for name, value in given.items() if value is not None}


def _import_client() -> None:
    from sleipnir.store.redis_import import without_metrics

    without_metrics()  # before anything imports redis-py


pass_options = click.make_pass_decorator(GlobalOptions)


def from_context(context: click.Context) -> GlobalOptions:
    """The options of a command line that is being completed and has not run."""
    given = context.find_root().params
    return GlobalOptions(given.get("agents_dir"), given.get("home"), given.get("redis_url"))


def name_of(agent: str) -> str:
    """The name of an agent that a person has named, by its name or its path. It is not looked up: an agent that no
    longer exists may still have runs."""
    return Path(agent).absolute().name if "/" in agent or agent == "." else agent


as_person = click.option(
    "--as", "person", metavar="NAME", help="In the name of this person; the audit says that you have named it."
)
"""For commands by which people answer for something."""
