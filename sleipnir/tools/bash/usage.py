"""The output of `--help` of a command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sleipnir.tools.bash.model import BashCommand, BashFile, Choices, Default, EnvVar, Parameter


def title(script: BashFile, command: BashCommand) -> str:
    """The name of a command in messages: the file's name and the names on the command's path."""
    return "-".join((script.program, *command.path))


def usage(script: BashFile, command: BashCommand) -> str:
    """The help text of a command, in the form of the real program."""
    head = [f"{title(script, command)} {command.version}"] if command.version else []
    head += [command.description] if command.description else []
    sections = (
        ("ARGS", ((_shape(argument), _about(argument)) for argument in command.arguments)),
        ("OPTIONS", ((", ".join((*option.names[:-1], option.label)), _about(option)) for option in command.options)),
        ("COMMANDS", ((child.name, _summary(child)) for child in command.commands)),
        ("ENVIRONMENTS", ((env.name, _about(env)) for env in command.envs)),
    )
    blocks = ["\n".join(head), _line(script, command), *(_section(name, rows) for name, rows in sections)]
    return "\n\n".join(block for block in blocks if block)


def _line(script: BashFile, command: BashCommand) -> str:
    words = ["USAGE:", script.program, *command.path]
    if not all(option.required for option in command.options):
        words.append("[OPTIONS]")
    words += [option.label for option in command.options if option.required]
    words += ["<COMMAND>"] if command.commands else [_shape(argument) for argument in command.arguments]
    return " ".join(words)


def _section(name: str, rows: Iterable[tuple[str, str]]) -> str:
    known = list(rows)
    if not known:
        return ""
    width = max(len(left) for left, _ in known)
    lines = [f"{name}:"]
    for left, about in known:
        for number, line in enumerate(about.splitlines() or [""]):
            lines.append(f"  {'' if number else left:<{width}}  {line}".rstrip())
    return "\n".join(lines)


def _shape(argument: Parameter) -> str:
    shape = argument.label if argument.required else f"[{argument.notations[0]}]"
    return f"{shape}..." if argument.is_list else shape


def _summary(command: BashCommand) -> str:
    aliases = [f"[aliases: {', '.join(command.aliases)}]"] if command.aliases else []
    default = ["[default]"] if command.is_default else []
    return " ".join([*command.description.splitlines()[:1], *aliases, *default])


def _about(item: Parameter | EnvVar) -> str:
    notes = [*_default(item.default), *_possible(item.choices)]
    if isinstance(item, Parameter) and item.env:
        notes.append(f"[env: {item.env}]")
    return " ".join([*([item.description] if item.description else []), *notes])


def _default(default: Default | None) -> Iterator[str]:
    if default and default.function is None:
        yield f"[default: {default.text}]"


def _possible(choices: Choices | None) -> Iterator[str]:
    if choices and choices.values:
        yield f"[possible values: {', '.join(choices.values)}]"
