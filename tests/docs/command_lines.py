"""Command lines of the documents: where they stand, and whether the real parser takes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from sleipnir.cli import front_page
from sleipnir.cli.app import app
from tests.docs.pages import PAGES, ROOT, Block, blocks

OPERATORS = {"|", "||", "&&", ";", "&", "<", ">", ">>"}
INLINE = re.compile(r"(?<!`)`sleipnir (?P<words>[^`]+)`(?!`)")
FOR_A_NUMBER = {"N"}  # what a usage line writes where a number belongs


@dataclass(frozen=True)
class Line:
    """A command as a page writes it, without the prompt, and what is shown below it."""

    block: Block
    text: str
    output: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """Without the comment at its end."""
        return re.sub(r"\s+#.*$", "", self.text).strip()


def lines_of(block: Block) -> list[Line]:
    """The commands of a block `bash` or `console`. Those of bash are a line each; a here-document is one of several."""
    if block.info == "console":
        return _console(block)
    found: list[Line] = []
    rest = iter(block.lines)
    for line in rest:
        if here := re.search(r"<<'?(\w+)'?", line):
            more = [line]
            for following in rest:
                more.append(following)
                if following == here[1]:
                    break
            line = "\n".join(more)
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(Line(block, line))
    return found


def _console(block: Block) -> list[Line]:
    found: list[Line] = []
    for line in block.lines:
        if line.startswith("$ "):
            found.append(Line(block, line[2:]))
        else:
            assert found, f"{block}: a console block begins with a command: `$ sleipnir ...`"
            found[-1] = Line(block, found[-1].text, (*found[-1].output, line))
    return found


def commands_of(shell: str) -> Iterator[list[str]]:
    """The words behind each `sleipnir` that a shell would start there."""
    lexer = shlex.shlex(shell, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in OPERATORS:
            words.append(word)
            continue
        while words and re.match(r"\w+=", words[0]):  # variables of this command alone
            words = words[1:]
        if words[:1] == ["sleipnir"]:
            yield words[1:]
        words = []


def refusal(words: Sequence[str]) -> str | None:
    """What the command line says of these arguments before it does anything, None if it takes them."""
    if len(words) == 1 and words[0] in front_page.COMMANDS:  # the command as such: what it needs is not said
        return None
    try:
        context = app.make_context("sleipnir", [*words])
        while isinstance(context.command, click.Group):
            name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
            assert command is not None
            context = command.make_context(name, rest, parent=context)
    except click.ClickException as refused:
        return None if _of_this_machine(refused) else refused.format_message()
    except click.exceptions.Exit:  # --help, --version
        return None
    return None


def _of_this_machine(refused: click.ClickException) -> bool:
    """Whether a file is missing, which says nothing about the command line."""
    named = refused.param if isinstance(refused, click.BadParameter) else None
    return isinstance(named, click.Parameter) and isinstance(named.type, click.Path | click.File)


def is_mentioned(words: Sequence[str]) -> bool:
    """Whether the parser takes this but for arguments that are left out, as in `sleipnir kb build`."""
    return any(refusal([*words, *["1"] * missing]) is None for missing in range(3))


def commands_in_blocks() -> Iterator[tuple[str, list[str]]]:
    """Every `sleipnir ...` in blocks of commands and of forms of commands, with its place."""
    for block in blocks("bash", "console"):
        for line in lines_of(block):
            for words in commands_of(line.command):
                yield f"{block}: {line.command}", words
    for block in blocks("text usage"):
        for line in block.lines:
            yield from ((f"{block}: {line}", words) for words in _form(line))


def commands_in_the_text() -> Iterator[tuple[str, list[str]]]:
    """Every code `sleipnir ...` outside of blocks, with its place."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.M | re.S)
        for found in INLINE.finditer(text):
            place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}"
            yield from ((place, words) for words in _form(f"sleipnir {found['words']}"))


def _form(line: str) -> Iterator[list[str]]:
    """The commands of a form; words in capitals stand for themselves or a number."""
    form = re.split(r"\s{2,}", line.strip())[0]
    if re.fullmatch(r"sleipnir [\w-]+(, [\w-]+)+", form):  # `sleipnir ps, show, history`
        yield from ([name] for name in form.removeprefix("sleipnir ").split(", "))
        return
    for words in commands_of(form.replace("\n", " ")):
        yield ["1" if word in FOR_A_NUMBER else word for word in words if word != "..."]
