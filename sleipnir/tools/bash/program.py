"""The bash program that runs an unchanged tool file which has no built-in parser (spec/graph-agents.md 4.2).

    bash -c PROGRAM FILE WORD...

The program defines our parser and then sources FILE, its `$0`. This is better than running a changed copy: `$0`,
`${BASH_SOURCE[0]}`, line numbers and `exit` are those of the file, siblings are found by `dirname "$0"`, options
of `set` stay in effect, and nothing is written. The file sees three differences: `return` is allowed at its top level,
`$-` has a `c`, and under `set -e` a raw file ends if its last command at top level fails, even if that is a test before
`&&`.

* A file with `eval "$(argc --argc-eval "$0" "$@")"` finds a function `argc` that returns a call of our parser. So
  the file decides when to call it, and code after that line runs as with the real program.
* For a file without that line (raw) the program calls the parser once after the file, where a build would have put it;
  or before the file, if no command has a function, so that the file can only use the variables.

Where the words of a call are known, and need no parser (variables.py), the program has assignments in its place:
defining and running the parser took a fifth of the CPU of a call. It is still loaded if the file calls it with other
words.

The words come from the command line, or from the file named by the variable WORDS_FILE: the kernel refuses a word of
more than 128 KiB on a command line. It refuses such a variable too, so the variable named by RAW_NAME, which holds the
arguments as JSON, is not exported from the shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from shlex import quote

from sleipnir.tools.bash.model import BashCommand, BashFile, Choices, Default, EnvVar, Parameter
from sleipnir.tools.bash.parse import parse
from sleipnir.tools.bash.usage import title, usage
from sleipnir.tools.bash.variables import assignments

WORDS_FILE = "SLEIPNIR_TOOL_WORDS_FILE"
"""Names a file of words that replace those of the command line, each followed by a NUL. Unset for the tool."""

RAW_NAME = "SLEIPNIR_TOOL_RAW_NAME"
"""Names a variable that is set to the text of LLM_TOOL_DATA_FILE, and not exported. Unset for the tool."""

_BUILT = re.compile(r"^\s*# ARGC-BUILD \{", re.MULTILINE)
_EVAL = re.compile(r"^\s*eval\b.*\s--argc-eval\s", re.MULTILINE)
_SHEBANG_OPTIONS = re.compile(r"\A#!\s*\S*?(?:env\s+(?:-S\s*)?)?bash\s+(-[A-Za-z]+)\s*$", re.MULTILINE)

_RUN_COMMAND = re.compile(r"^_slp_run\(\) \{\n.*?^\}$", re.MULTILINE | re.DOTALL)

_ARGC = r"""
argc() {
    if [[ ${1-} != --argc-eval ]]; then
        command argc "$@"
        return
    fi
    shift 2
    printf _slp_run
    if [[ $# -gt 0 ]]; then
        printf ' %q' "$@"
    fi
}
"""

_IS_KNOWN = """
_slp_is_known() {
    local word at=0
    if [[ $# -ne ${#_slp_known[@]} ]]; then
        return 1
    fi
    for word in "$@"; do
        if [[ $word != "${_slp_known[at]}" ]]; then
            return 1
        fi
        at=$((at + 1))
    done
}
"""

_START = f"""
if [[ -n ${{{WORDS_FILE}-}} ]]; then
    set --
    while IFS= read -r -d '' _slp_word; do
        set -- "$@" "$_slp_word"
    done <"${WORDS_FILE}"
    unset -v {WORDS_FILE} _slp_word
fi
if [[ -n ${{{RAW_NAME}-}} ]]; then
    printf -v "${RAW_NAME}" %s "$(<"$LLM_TOOL_DATA_FILE")"
    unset -v {RAW_NAME}
fi
if [[ ! -r $0 ]]; then
    printf '%s: cannot be read\\n' "$0" >&2
    exit 126
fi
"""

_RUN = '_slp_run "$@"\n'


def runnable(text: str, file: Path, words: Sequence[str] | None = None) -> str | None:
    """The program that runs `file`, whose text is `text`, as `bash -c PROGRAM FILE WORD...`; None if it has a built-in
    parser, so that `bash FILE WORD...` is enough. FILE must hold a slash. With `words` it is for a call with these, and
    may be quicker. Raises ToolFileError."""
    shebang = _SHEBANG_OPTIONS.match(text)
    source = f'set {shebang[1]}\nsource "$0"\n' if shebang else 'source "$0"\n'
    if _BUILT.search(text):
        return _START + source if shebang else None
    script = parse(text, file)
    raw = not _EVAL.search(text)
    plain = not any(command.function for command in script.root.walk())
    order = [source] if not raw else [_RUN, source] if plain else [source, _RUN]
    known = None if words is None else assignments(script, words)
    if known is None:
        return "\n".join([_driver(), _tables_of(text, file), _ARGC, _START, *order])
    return "\n".join([*_stub(script, _tables_of(text, file), known), _ARGC, _START, '_slp_known=("$@")', *order])


def _stub(script: BashFile, tables: str, known: Sequence[str]) -> Iterator[str]:
    """In place of the parser: functions of the same names, which load it when they are called with other words."""
    yield f"_slp_program={quote(script.program)}"
    yield _run_command()
    yield _IS_KNOWN
    yield "_slp_parse() {"
    yield '    if _slp_is_known "$@"; then'
    yield from (f"        {statement}" for statement in known)
    yield "        return 0"
    yield "    fi"
    yield f"    source {_driver_file()}"
    yield f"    eval {quote(tables)}"
    yield '    _slp_parse "$@"'
    yield "}"


@cache
def _driver_file() -> str:
    """A word of bash."""
    return quote(str(resources.files("sleipnir.tools.bash") / "driver.sh"))


@cache
def _driver() -> str:
    """The parser without comments and indentation."""
    text = (resources.files("sleipnir.tools.bash") / "driver.sh").read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))


@cache
def _run_command() -> str:
    """The function `_slp_run` of the driver."""
    found = _RUN_COMMAND.search(_driver())
    assert found is not None
    return found[0]


@lru_cache(maxsize=64)  # as of parse
def _tables_of(text: str, file: Path) -> str:
    return "\n".join(_tables(parse(text, file)))


def _tables(script: BashFile) -> Iterator[str]:
    dotenv = script.dotenv or ""
    if dotenv and "/" not in dotenv:
        dotenv = f"./{dotenv}"  # bash searches PATH for a bare name
    yield f"_slp_program={quote(script.program)} _slp_dotenv={quote(dotenv)}"
    yield f"_slp_combine_shorts={_flag(script.combine_shorts)}"
    entries = {command.path: f"_slp_command_{number}" for number, command in enumerate(script.root.walk())}
    for command in script.root.walk():
        below = [(entries[child.path], child) for child in command.commands]
        body = "\n".join(f"    {line}" for line in _table(script, command, below))
        yield f"{entries[command.path]}() {{\n{body}\n}}"


def _table(script: BashFile, command: BashCommand, below: list[tuple[str, BashCommand]]) -> Iterator[str]:
    version = f"{title(script, command)} {command.version or '0.0.0'}" if command.version or not command.path else ""
    yield _call(
        "_slp_command",
        title=title(script, command),
        usage=usage(script, command),
        version=version,
        function=command.function or "",
        takes_everything=_flag(command.takes_everything),
        default_command=next((entry for entry, child in below if child.is_default), ""),
        children_check=_flag(script.inherit_options),
    )
    for parameter in (*command.options, *command.arguments):
        yield " ".join([_parameter(parameter), "--", *map(quote, parameter.names)])
    for env in command.envs:
        yield _env(env)
    for symbol in command.symbols:
        id = re.sub(r"[^A-Za-z0-9_]", "_", symbol.id)
        yield f"_slp_symbol {quote(symbol.sign)} argc_{id} {quote(_choices(symbol.choices))}"
    for entry, child in below:
        yield " ".join(["_slp_below", entry, *map(quote, (child.name, *child.aliases))])
    if command.tools:
        yield f"_slp_tools=({' '.join(map(quote, command.tools))})"


def _parameter(parameter: Parameter) -> str:
    """Only the fields that the parser cannot derive: all fields would make the program of a large file too long."""
    least, most = parameter.words
    notation = parameter.notation if parameter.notations else ""
    usual_label = " ".join(filter(None, (parameter.name, notation)))
    return _call(
        "_slp_parameter",
        kind=parameter.kind if parameter.kind != "option" else "",
        var=parameter.variable,
        name="" if parameter.names else parameter.id,
        label=parameter.label if parameter.label != usual_label else "",
        notation=notation,
        min=str(least) if least != 1 else "",
        max=str(most) if most != 1 else "",
        list=_flag(parameter.is_list),
        multiple=_flag(parameter.multiple),
        delimiter=parameter.delimiter,
        rest=_flag(parameter.rest),
        assigned=_flag(parameter.assigned),
        prefixed=_flag(parameter.prefixed),
        required=_flag(parameter.required),
        bound=parameter.env or "",
        default=_default(parameter.default),
        choices=_choices(parameter.choices),
    )


def _env(env: EnvVar) -> str:
    return _call(
        "_slp_env",
        name=env.name,
        required=_flag(env.required),
        default=_default(env.default),
        choices=_choices(env.choices),
    )


def _default(default: Default | None) -> str:
    if default is None:
        return ""
    return f"text:{default.text}" if default.function is None else f"function:{default.function}"


def _choices(choices: Choices | None) -> str:
    if choices is None or not choices.checked:
        return ""
    return f"function:{choices.function}" if choices.function else "text:" + "\n".join(choices.values)


def _flag(value: bool) -> str:
    return "1" if value else ""


def _call(called: str, /, **fields: str) -> str:
    fields_set = (f"{name}={value}" for name, value in fields.items() if value)
    return " ".join([called, *map(quote, fields_set)])
