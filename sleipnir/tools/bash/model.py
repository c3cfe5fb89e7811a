"""The annotations of a bash tool file as plain values (spec/graph-agents.md 4.2).

A `BashFile` is one file. Its `root` is the file itself, with the commands below it. Names are kept as they are written;
what the file's own code sees of a parameter is the shell variable `variable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from sleipnir.errors import ToolFileError

Kind: TypeAlias = Literal["option", "flag", "argument"]

MANY = 1_000_000
"""Stands for no limit of words."""


@dataclass(frozen=True)
class Default:
    """The value of a missing parameter: `text`, or the output of `function` of the file."""

    text: str = ""
    function: str | None = None


@dataclass(frozen=True)
class Choices:
    """The allowed values: `values`, or the lines that `function` of the file prints. Only a hint unless `checked`."""

    values: tuple[str, ...] = ()
    function: str | None = None
    checked: bool = True


@dataclass(frozen=True)
class Parameter:
    """An `@option`, a `@flag` or an `@arg` (kind "argument").

    `names` are the spellings on a command line, the long one last; an argument has none. `multiple` allows several
    uses; `delimiter`, if set, separates values in one word. `rest` takes all following words.
    `assigned` requires its value after a `=`, `prefixed` directly after its name. `notations` are without brackets.
    `env` names the variable that replaces a missing parameter.
    """

    kind: Kind
    id: str
    line: int
    description: str = ""
    names: tuple[str, ...] = ()
    required: bool = False
    multiple: bool = False
    delimiter: str = ""
    rest: bool = False
    assigned: bool = False
    prefixed: bool = False
    default: Default | None = None
    choices: Choices | None = None
    env: str | None = None
    notations: tuple[str, ...] = ()

    @property
    def tag(self) -> str:
        return "@arg" if self.kind == "argument" else f"@{self.kind}"

    @property
    def name(self) -> str:
        """The name in messages."""
        return self.names[-1] if self.names else self.id

    @property
    def variable(self) -> str:
        return "argc_" + re.sub(r"[^A-Za-z0-9_]", "_", self.id)

    @property
    def words(self) -> tuple[int, int]:
        """The least and the greatest number of values of one use of an option."""
        if self.kind == "flag":
            return 0, 0
        fixed, last = len(self.notations), self.notations[-1][-1:]
        if self.rest:
            return 1, MANY
        return {"*": (fixed - 1, MANY), "+": (fixed, MANY), "?": (fixed - 1, fixed)}.get(last, (fixed, fixed))

    @property
    def is_list(self) -> bool:
        """Whether its variable is a bash array."""
        return self.kind != "flag" and (self.multiple or self.rest or self.words[1] > 1)

    @property
    def notation(self) -> str:
        """A value of it in messages."""
        return f"<{self.notations[0]}>"

    @property
    def label(self) -> str:
        """Its name with its values in messages."""
        values = () if self.kind == "flag" else tuple(f"<{notation}>" for notation in self.notations)
        return " ".join((*self.names[-1:], *values))


@dataclass(frozen=True)
class EnvVar:
    """An `@env`."""

    name: str
    line: int
    description: str = ""
    required: bool = False
    default: Default | None = None
    choices: Choices | None = None


@dataclass(frozen=True)
class Symbol:
    """A `@meta symbol`: a word that starts with `sign` sets the variable of `id`."""

    sign: str
    id: str
    choices: Choices | None = None


@dataclass(frozen=True)
class BashCommand:
    """The file itself (no `path`), or a function with an `@cmd`. `function` is the function to call; None for none.

    `options` are options and flags in the order of the file, inherited ones first; `envs` and `tools`, the required
    programs, have the same order.
    """

    path: tuple[str, ...] = ()
    line: int = 1
    description: str = ""
    function: str | None = None
    aliases: tuple[str, ...] = ()
    options: tuple[Parameter, ...] = ()
    arguments: tuple[Parameter, ...] = ()
    envs: tuple[EnvVar, ...] = ()
    tools: tuple[str, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    version: str | None = None
    is_default: bool = False
    commands: tuple[BashCommand, ...] = ()

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    @property
    def takes_everything(self) -> bool:
        """Whether its one argument takes all words, even words that look like options."""
        return not self.commands and not self.options and len(self.arguments) == 1 and self.arguments[0].rest

    def walk(self) -> Iterator[BashCommand]:
        """This command and all below it, parents first."""
        yield self
        for command in self.commands:
            yield from command.walk()


@dataclass(frozen=True)
class BashFile:
    """A tool file. `dotenv` is the file of variables to load first; None for none."""

    file: Path
    root: BashCommand
    functions: frozenset[str] = frozenset()
    dotenv: str | None = None
    combine_shorts: bool = False
    inherit_options: bool = False

    @property
    def program(self) -> str:
        """The name of the file in messages."""
        return self.file.name.removesuffix(".sh")

    def command(self, name: str | None) -> BashCommand:
        """The top-level command of that name, the root for None. Raises ToolFileError."""
        if name is None:
            return self.root
        for command in self.root.commands:
            if command.name == name:
                return command
        raise ToolFileError(self.file, None, f"there is no command {name!r}")
