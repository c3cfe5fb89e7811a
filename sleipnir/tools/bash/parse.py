"""Bind the tags of a tool file to its commands (spec/graph-agents.md 4.2).

Rule 1. Tags before the first `@cmd` belong to the file. Tags between an `@cmd` and the next function belong to that
        function. Other tags have no owner and are refused.
Rule 2. A function `a::b` is the command `b` below the command `a`, which must come first.
Rule 3. A command inherits variables and required programs from its parents, and their options if the file enables it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, TypeVar

from sleipnir.errors import ToolFileError
from sleipnir.tools.bash import grammar
from sleipnir.tools.bash.lines import TAGS, Function, Tag, events
from sleipnir.tools.bash.model import BashCommand, BashFile, EnvVar, Parameter, Symbol

MAIN = "main"
"""The function that runs if no command is named; `a::main` is that of a command `a` with commands below it."""

_T = TypeVar("_T")


@functools.lru_cache(maxsize=64)  # each call of a tool needs those of its file
def parse(text: str, file: Path) -> BashFile:
    """The annotations in `text`. `file` is only used as a name, not read. Raises ToolFileError."""
    reading = _Reading(file)
    for event in events(text):
        if isinstance(event, Tag):
            reading.tag(event)
        else:
            reading.function(event)
    return reading.script()


@dataclass
class _Draft:
    """A command while the file is being read. `taken` maps names that are in use to their lines."""

    line: int
    path: tuple[str, ...] = ()
    function: str | None = None
    description: str = ""
    aliases: tuple[str, ...] = ()
    aliases_line: int = 0
    options: list[Parameter] = field(default_factory=list)
    arguments: list[Parameter] = field(default_factory=list)
    envs: list[EnvVar] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)
    version: str | None = None
    commands: list[_Draft] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)

    def child(self, name: str) -> _Draft | None:
        return next((command for command in self.commands if command.path[-1] == name), None)


class _Reading:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._root = self._owner = _Draft(line=1)
        self._waiting = False
        """Whether an `@cmd` still lacks its function."""
        self._ownerless = False
        """Whether a function ended the block that tags could belong to."""
        self._functions: set[str] = set()
        self._commands: dict[str, int] = {}

    def tag(self, tag: Tag) -> None:
        """Take the next tag, which belongs to the file or to the current command."""
        if tag.name not in TAGS:
            self._fail(tag.line, f"@{tag.name}(line {tag.line}) is unknown tag")
        if tag.name == "cmd":
            self._begin_command(tag)
            return
        if self._ownerless:
            self._fail(tag.line, f"@{tag.name}(line {tag.line}) shouldn't be here, @cmd is missing?")
        self._add(tag, self._owner)

    def function(self, function: Function) -> None:
        """Take the next function, which completes the command whose tags are above it."""
        name, line = function.name, function.line
        if name in self._commands:
            self._fail(line, f"{name}(line {line}) conflicts with cmd or alias at line {self._commands[name]}")
        self._functions.add(name)
        if self._waiting:
            self._commands[name] = line
            self._place(self._owner, function)
        self._waiting, self._ownerless = False, True

    def script(self) -> BashFile:
        """The annotations of the complete file."""
        if self._waiting:
            self._fail_waiting()
        inherit = "inherit-flag-options" in self._root.meta
        dotenv = self._root.meta.get("dotenv")
        return BashFile(
            file=self._file,
            root=self._finished(self._root, BashCommand(), inherit),
            functions=frozenset(self._functions),
            dotenv=".env" if dotenv == "" else dotenv,
            combine_shorts="combine-shorts" in self._root.meta,
            inherit_options=inherit,
        )

    def _begin_command(self, tag: Tag) -> None:
        if self._waiting:
            self._fail_waiting()
        self._owner = _Draft(line=tag.line, description=tag.described(tag.text))
        self._waiting, self._ownerless = True, False

    def _add(self, tag: Tag, owner: _Draft) -> None:
        match tag.name:
            case "describe":
                owner.description = tag.described(tag.text)
                if owner is self._root:
                    owner.line = tag.line
            case "version":
                owner.version = self._needed(tag, tag.text)
            case "alias":
                owner.aliases = tuple(name.strip() for name in self._needed(tag, tag.text).split(","))
                owner.aliases_line = tag.line
            case "meta":
                self._add_meta(tag, owner)
            case "env":
                env = self._parsed(tag, grammar.env)
                self._take(owner, tag, env.name)
                owner.envs.append(env)
            case "arg":
                argument = self._parsed(tag, grammar.argument)
                self._take(owner, tag, argument.id)
                owner.arguments.append(argument)
            case _:
                option = self._parsed(tag, grammar.flag if tag.name == "flag" else grammar.option)
                for name in option.names:
                    self._take(owner, tag, name)
                owner.options.append(option)

    def _add_meta(self, tag: Tag, owner: _Draft) -> None:
        key, *values = self._needed(tag, tag.text).split(maxsplit=1)
        value = "".join(values)
        owner.meta[key] = value
        if key == "version":
            if not value:
                self._fail(tag.line, f"@meta(line {tag.line}) invalid version value")
            owner.version = value
        if key == "symbol":
            symbol = grammar.symbol(value)
            if symbol is None:
                self._fail(tag.line, f"@meta(line {tag.line}) invalid symbol value")
            owner.symbols.append(symbol)

    def _place(self, draft: _Draft, function: Function) -> None:
        """Add the command of `function` to its parent."""
        parts = tuple(part.rstrip("_") for part in function.name.split("::"))
        parent: _Draft | None = self._root
        for part in parts[:-1]:
            parent = parent.child(part) if parent else None
        if parent is None or not all(parts):
            self._fail(function.line, f"{function.name}(line {function.line}) lack of parent command")
        draft.path, draft.function = parts, function.name
        for alias in draft.aliases:
            taken = parent.taken.get(alias) or (self._commands.get(alias) if parent is self._root else None)
            if taken:
                line = draft.aliases_line
                self._fail(line, f"@alias(line {line}) conflicts with cmd or alias at line {taken}")
            parent.taken[alias] = draft.aliases_line
        if parts[-1] in parent.taken:
            line = parent.taken[parts[-1]]
            self._fail(
                function.line, f"{function.name}(line {function.line}) conflicts with cmd or alias at line {line}"
            )
        parent.taken[parts[-1]] = function.line
        parent.commands.append(draft)

    def _finished(self, draft: _Draft, above: BashCommand, inherit: bool) -> BashCommand:
        """The command of `draft`, with inherited values and its child commands."""
        own_names = {name for option in draft.options for name in option.names}
        inherited = [option for option in above.options if inherit and not own_names.intersection(option.names)]
        own_envs = {env.name for env in draft.envs}
        command = BashCommand(
            path=draft.path,
            line=draft.line,
            description=draft.description,
            function=self._runs(draft),
            aliases=draft.aliases,
            options=(*inherited, *(_bound(option, draft.path) for option in draft.options)),
            arguments=tuple(_bound(argument, draft.path) for argument in draft.arguments),
            envs=(*(env for env in above.envs if env.name not in own_envs), *draft.envs),
            tools=tuple(dict.fromkeys((*above.tools, *re.findall(r"[^\s,]+", draft.meta.get("require-tools", ""))))),
            symbols=tuple(draft.symbols),
            version=draft.version,
            is_default="default-subcommand" in draft.meta,
        )
        return replace(command, commands=tuple(self._finished(child, command, inherit) for child in draft.commands))

    def _runs(self, draft: _Draft) -> str | None:
        if draft.path and not draft.commands:
            return draft.function
        main = "::".join((*draft.path, MAIN))
        return main if main in self._functions else None

    def _take(self, owner: _Draft, tag: Tag, name: str) -> None:
        key = f"@{tag.name} {name}" if tag.name in ("arg", "env") else name
        if key in owner.taken:
            self._fail(tag.line, f"@{tag.name}(line {tag.line}) has '{name}' already exists at line {owner.taken[key]}")
        owner.taken[key] = tag.line

    def _parsed(self, tag: Tag, rule: Callable[[Tag], _T]) -> _T:
        try:
            return rule(tag)
        except grammar.BadSyntax:
            self._fail(tag.line, f"syntax error at line {tag.line}")

    def _needed(self, tag: Tag, text: str) -> str:
        if not text:
            self._fail(tag.line, f"syntax error at line {tag.line}")
        return text

    def _fail_waiting(self) -> NoReturn:
        self._fail(self._owner.line, f"@cmd(line {self._owner.line}) missing function?")

    def _fail(self, line: int, message: str) -> NoReturn:
        raise ToolFileError(self._file, line, message)


def _bound(parameter: Parameter, path: Iterable[str]) -> Parameter:
    """The parameter with `$$` replaced by the name of its variable."""
    if parameter.env != grammar.AUTO_ENV:
        return parameter
    return replace(parameter, env=re.sub(r"\W", "_", "_".join((*path, parameter.id)), flags=re.ASCII).upper())
