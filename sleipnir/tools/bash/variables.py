"""The variables that our parser would set for the words of a call, without it: as assignments of bash.

A call has the words of arguments.py: a command, and `--name=value` or `--name` for each argument. What they mean is
known before bash starts, and an assignment names a word by its position and holds no value. Everything else is left to
the parser, which then also reports what is wrong: mistakes, help, positional arguments, several values, and values that
come from functions or variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from sleipnir.tools.bash.model import BashCommand, BashFile, Parameter


def assignments(script: BashFile, words: Sequence[str]) -> list[str] | None:
    """Statements of a function that is called with these words; None if the parser is needed."""
    found = None if script.dotenv else _command(script.root, words)
    if found is None or not _is_plain(found):
        return None
    given = _given(found, words, 0 if found is script.root else 1)
    if given is None:
        return None
    statements = [_value(option, given.get(option.id, [])) for option in found.options]
    if None in statements:
        return None
    return [
        'argc__args=("$_slp_program" "$@") argc__positionals=()',
        f"argc__fn={quote(found.function or '')}",
        # The environment of the worker's caller may hold one, which would stay exported.
        *(f"unset -v {option.variable}" for option in found.options),
        *filter(None, statements),
    ]


def _command(root: BashCommand, words: Sequence[str]) -> BashCommand | None:
    """The command of a call; of files with commands only where the file itself has nothing to parse."""
    if not root.commands:
        return root
    if not words or root.options or root.arguments or root.symbols:
        return None
    named = (child for child in root.commands if words[0] in (child.name, *child.aliases))
    child = next(named, None)
    return None if child is None or child.commands else child


def _is_plain(command: BashCommand) -> bool:
    variables = {option.variable for option in command.options}
    if command.arguments or command.envs or command.tools or command.symbols or len(variables) < len(command.options):
        return False
    return not any(
        option.delimiter
        or option.rest
        or option.prefixed
        or option.env
        or (option.kind != "flag" and option.words != (1, 1))
        for option in command.options
    )


def _given(command: BashCommand, words: Sequence[str], start: int) -> dict[str, list[int]] | None:
    """The positions of the words of each option, by its id."""
    named: dict[str, Parameter] = {}
    for option in command.options:
        for name in option.names:
            named.setdefault(name, option)
    given: dict[str, list[int]] = {}
    for position, word in enumerate(words[start:], start + 1):
        name, equals, value = word.partition("=")
        found = named.get(name)
        if found is None or bool(equals) == (found.kind == "flag") or not _is_choice(found, value):
            return None
        given.setdefault(found.id, []).append(position)
        if len(given[found.id]) > 1 and not found.multiple:
            return None
    return given


def _is_choice(option: Parameter, value: str) -> bool:
    choices = option.choices
    if option.kind == "flag" or choices is None or not choices.checked:
        return True
    return choices.function is None and "\n" not in value and value in choices.values


def _value(option: Parameter, positions: Sequence[int]) -> str | None:
    """The statement that gives a parameter its value, empty for one without; None if only the parser can."""
    name = option.variable
    if option.kind == "flag" and positions:
        return f"{name}={len(positions)}"
    if positions:
        values = [f"${{{position}#*=}}" for position in positions]
    elif option.default is not None:
        if option.default.function is not None:
            return None
        values = [quote(option.default.text)]
    else:
        return None if option.required else ""
    if option.is_list:
        quoted = [f'"{value}"' if positions else value for value in values]
        return f"{name}=({' '.join(quoted)})"
    return f"{name}={values[0]}"
