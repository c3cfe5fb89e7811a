"""Look at the files of a project, and at nothing outside of it.

The agents explore, oracle and coder import this file: a run takes `.shared` along with its agent's folder.

Rules. The project is the agent variable `project_dir`, seen from where the run was started. Paths are relative to it;
what lies outside, links followed, is refused, and so are git's own files and files that usually hold secrets, because
what a tool returns goes to a model's provider. The same files give the same text: sorted, and cut at the limits below,
which the text then says. What cannot be done ends the call with a sentence for the model.
It runs on the python3 of any worker from 3.9 on, so it uses the standard library only.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

MAX_FILES = 20_000  # of a project; a walk of more takes longer than a model should wait
MAX_READ_BYTES = 10_000_000  # of a file that is read
MAX_SEARCHED_BYTES = 1_000_000  # the largest file that is searched; larger ones are data or generated
MAX_LINES = 400  # of a file, in one call
MAX_LINE_CHARACTERS = 500
MAX_TEXT_CHARACTERS = 40_000  # some ten thousand tokens
MAX_MATCHES = 100
MAX_FOUND = 100
MAX_TREE_LINES = 250

SKIPPED = frozenset(
    (".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache", ".pytest_cache")
)
"""Folders that are not listed and not searched."""

_SECRET_NAMES = (
    ".env", ".env.*", "*.env", ".netrc", ".pgpass", ".pypirc", "*.pem", "*.key", "*.p12", "*.pfx", "id_rsa", "id_dsa",
    "id_ecdsa", "id_ed25519",
)  # fmt: skip
_NOT_SECRET = (".env.example", ".env.sample", ".env.template", "example.env")


class Refused(SystemExit):
    """Ends the call with this text as its error, and without a traceback."""


def root() -> Path:
    """The project's directory, links followed."""
    given = Path(os.environ.get("LLM_AGENT_VAR_PROJECT_DIR") or ".").expanduser()
    directory = _resolved(_started_in() / given if not given.is_absolute() else given)
    if directory is None or not directory.is_dir():
        raise Refused(
            f"The project directory {str(directory or given)!r} does not exist on this machine. Tell the person who "
            "started the run: the variable project_dir must name a directory that the workers can see."
        )
    return directory


def _started_in() -> Path:
    """The directory of `sleipnir run`. The run's scratch folder and the agent's folder are never the project."""
    directory = Path.cwd()
    places = [os.environ.get(name) for name in ("GRAPH_SCRATCH_DIR", "LLM_AGENT_ROOT_DIR")]
    if directory not in [_resolved(Path(place)) for place in places if place]:
        return directory
    caller = os.environ.get("GRAPH_CALLER_DIR")
    if not caller:
        raise Refused("No project directory is known: set the variable project_dir to an absolute path.")
    return Path(caller)


def _resolved(path: Path) -> Path | None:
    """None for an impossible path: a NUL, a name that is too long, a loop of links."""
    try:
        resolved = path.resolve()
        resolved.exists()
    except (OSError, RuntimeError, ValueError):
        return None
    return resolved


def inside(path: str) -> Path:
    """The place in the project that a path names, there or not. Refuses what is outside or not for models."""
    base = root()
    place = _resolved(base / (path or "."))
    if place is None:
        raise Refused(f"{path[:200]!r} is not a path.")
    if not place.is_relative_to(base):
        raise Refused(f"{path!r} is outside the project. Paths are relative to the project directory: src/main.py.")
    if ".git" in place.relative_to(base).parts:
        raise Refused(f"{path!r} belongs to git, whose own files these tools leave alone.")
    if is_secret(place.name):
        raise Refused(f"{path!r} usually holds secrets, which are not shown to models. Go on without it.")
    return place


def is_secret(name: str) -> bool:
    """Whether files of this name usually hold keys or passwords."""
    if name in _NOT_SECRET:
        return False
    return any(fnmatch(name, pattern) for pattern in _SECRET_NAMES)


def existing(path: str, kind: str) -> Path:
    """A "file" or "directory" of the project. Refuses what is not there with the names that come close."""
    place = inside(path)
    if place.is_file() if kind == "file" else place.is_dir():
        return place
    if place.exists():
        other = "a directory" if place.is_dir() else "a file" if place.is_file() else "a device or a pipe"
        raise Refused(f"{path!r} is {other}, not a {kind}.")
    raise Refused(f"{path!r} does not exist.{_hint(path)}")


def _hint(path: str) -> str:
    known, _ = files()
    name = PurePosixPath(path).name
    same_name = [each for each in known if PurePosixPath(each).name == name]
    close = same_name[:3] or difflib.get_close_matches(path, known, n=3, cutoff=0.8)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else " No file has a name like it."


def shown(path: Path) -> str:
    """A path as the tools name it."""
    return path.relative_to(root()).as_posix()


def text_of(path: Path) -> str:
    """The text of a file, its line ends as they are. Refuses what is too large or no text."""
    size = path.stat().st_size
    if size > MAX_READ_BYTES:
        raise Refused(f"{shown(path)!r} has {size:,} bytes, more than the {MAX_READ_BYTES:,} that can be read.")
    try:
        return _decoded(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Refused(f"{shown(path)!r} cannot be read: {_reason(error)}") from None


def _decoded(content: bytes) -> str:
    """Raises ValueError for content that is not text."""
    if b"\0" in content[:8192]:
        raise ValueError("it is a binary file")
    return content.decode("utf-8", errors="replace")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def files(below: str = ".") -> tuple[list[str], bool]:
    """The project's files below a directory, sorted, and whether these are all of them.

    In a git repository those that git tracks or would track, else all but those in SKIPPED folders.
    """
    base = root()
    paths = sorted(path for path in _from_git(base) or _walked(base) if not SKIPPED.intersection(path.split("/")))
    start = existing(below, "directory").relative_to(base).as_posix()
    inner = paths if start == "." else [path for path in paths if path.startswith(start + "/")]
    return inner[:MAX_FILES], len(inner) <= MAX_FILES


def git(base: Path, *words: str) -> str | None:
    """The output of a git command. None if git is missing or fails. No program that the repository names is run."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "log.showSignature=false", *words]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, cwd=base, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


def _from_git(base: Path) -> list[str]:
    """Empty too for a directory that git ignores: then it is walked."""
    listed = git(base, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or ""
    return [path for path in dict.fromkeys(listed.split("\0")) if path and (base / path).is_file()]


def _walked(base: Path) -> Iterator[str]:
    count = 0
    for current, folders, names in os.walk(base):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        folder = Path(current).relative_to(base)
        for name in sorted(names):
            if (base / folder / name).is_file():
                count += 1
                yield (folder / name).as_posix()
        if count > MAX_FILES:
            return


def numbered(path: Path, lines: str) -> str:
    """Lines of a file with their numbers. `lines` is "40", "40-80" or "40-"; empty: from the start."""
    content = _lines_of(text_of(path))
    first, last = _line_range(lines, len(content))
    text, taken = "", 0
    for number, line in enumerate(content[first - 1 : last], first):
        row = f"{number}| {_cut(line)}\n"
        if taken == MAX_LINES or len(text) + len(row) > MAX_TEXT_CHARACTERS:
            break
        text, taken = text + row, taken + 1
    if not content:
        return f"{shown(path)} is empty."
    end = first + taken - 1
    more = f'\n({len(content) - end} more lines: ask for lines "{end + 1}-")' if end < last else ""
    return f"{shown(path)}, lines {first}-{end} of {len(content)}:\n{text.rstrip(chr(10))}{more}"


def _lines_of(text: str) -> list[str]:
    """Lines as editors count them: str.splitlines also splits at form feeds and similar characters."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _line_range(lines: str, count: int) -> tuple[int, int]:
    if not lines.strip():
        return 1, count
    match = re.fullmatch(r"\s*(\d+)\s*(-\s*(\d*))?\s*", lines)
    if match is None or int(match[1]) < 1:
        raise Refused(f'lines must be like "40", "40-80" or "40-", not {lines!r}.')
    first = int(match[1])
    last = first if match[2] is None else int(match[3]) if match[3] else count
    if last < first:
        raise Refused(f"lines {lines!r} end before they begin.")
    if first > max(count, 1):
        raise Refused(f"The file has {count} lines only.")
    return first, min(last, count)


def count_of(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number} {what[:-1]}ies" if what.endswith("y") else f"{number} {what}{'es' if what.endswith('h') else 's'}"


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else line[:MAX_LINE_CHARACTERS] + " [line cut]"


def search(pattern: str, file_type: str) -> str:
    """The lines that a regular expression matches, as `path:line: text`."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise Refused(
            f"{pattern!r} is not a regular expression: {error}. For the text itself use {re.escape(pattern)!r}."
        ) from None
    if not pattern:
        raise Refused("The pattern is empty.")
    base = root()
    known, complete = files()
    searched = [path for path in known if _is_of_type(path, file_type)]
    among = count_of(len(searched), "file") + (f" of type {file_type}" if file_type else "")
    among += "" if complete else " (the project has more files than are searched)"
    matches: list[str] = []
    for path in searched:
        matches += (f"{path}:{number}: {_cut(line.strip())}" for number, line in _matching(base, path, expression))
        if len(matches) > MAX_MATCHES:
            return "\n".join([f"The first {MAX_MATCHES} matches; there are more:", *matches[:MAX_MATCHES]])
    if not matches:
        return f"No line matches {pattern!r} in {among}."
    return "\n".join([f"{count_of(len(matches), 'match')} in {among}:", *matches])


def _matching(base: Path, path: str, expression: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    place = _resolved(base / path)
    if place is None or not place.is_relative_to(base) or is_secret(place.name):
        return
    try:
        if place.stat().st_size > MAX_SEARCHED_BYTES:
            return
        text = _decoded(place.read_bytes())
    except (OSError, ValueError):
        return
    for number, line in enumerate(_lines_of(text), 1):
        if expression.search(line):
            yield number, line


def _is_of_type(path: str, file_type: str) -> bool:
    kind = file_type.strip().lstrip("*").lstrip(".").lower()
    name = PurePosixPath(path).name.lower()
    return not kind or name == kind or name.endswith("." + kind)


def found_files(pattern: str) -> str:
    """The files whose name or path fits a glob; a pattern without wildcards fits what contains it."""
    wanted = pattern.strip().lower()
    if not wanted:
        raise Refused("The pattern is empty.")
    known, complete = files()
    paths = [path for path in known if _fits(path.lower(), wanted.removeprefix("./"))]
    if not paths:
        return f"No file of {len(known)} fits {pattern!r}." + ("" if complete else " The project has more.")
    rest = f"\n({len(paths) - MAX_FOUND} more: use a narrower pattern)" if len(paths) > MAX_FOUND else ""
    return f"{count_of(len(paths), 'file')}:\n" + "\n".join(paths[:MAX_FOUND]) + rest


def _fits(path: str, wanted: str) -> bool:
    if not any(sign in wanted for sign in "*?["):
        return wanted in path
    if "/" not in wanted:
        return fnmatch(PurePosixPath(path).name, wanted)
    return fnmatch(path, wanted) or ("**/" in wanted and fnmatch(path, wanted.replace("**/", "")))


def tree(below: str, depth: int) -> str:
    """The directories and files below a directory, as deep as asked for or as the limit of lines allows."""
    inner, complete = files(below)
    start = existing(below, "directory").relative_to(root()).as_posix()
    paths = [path if start == "." else path[len(start) + 1 :] for path in inner]
    size = count_of(len(paths), "file") + ("" if complete else " and more")
    head = f"{root().name if start == '.' else start}/ ({size})"
    for levels in range(max(depth, 1), 0, -1):
        rows = _rows(paths, levels)
        if len(rows) <= MAX_TREE_LINES:
            return "\n".join([head, *rows])
    rest = f"  ({len(rows) - MAX_TREE_LINES} more: ask for one of the directories)"
    return "\n".join([head, *rows[:MAX_TREE_LINES], rest])


def _rows(paths: list[str], levels: int) -> list[str]:
    rows: list[str] = []
    sizes = Counter("/".join(parts[:n]) for parts in (path.split("/") for path in paths) for n in range(1, len(parts)))
    seen: set[str] = set()
    for path in paths:
        parts = path.split("/")
        for n in range(1, min(len(parts) - 1, levels) + 1):
            folder = "/".join(parts[:n])
            if folder not in seen:
                seen.add(folder)
                count = f" ({count_of(sizes[folder], 'file')})" if n == levels else ""
                rows.append(f"{'  ' * n}{parts[n - 1]}/{count}")
        if len(parts) <= levels:
            rows.append(f"{'  ' * len(parts)}{parts[-1]}")
    return rows


def listing(below: str) -> str:
    """What a directory holds, hidden and ignored entries too."""
    folder = existing(below, "directory")
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: (not entry.is_dir(), entry.name))
    except OSError as error:
        raise Refused(f"{below!r} cannot be listed: {_reason(error)}") from None
    rows = [f"{entry.name}/" if entry.is_dir() else f"{entry.name} ({_size(entry)})" for entry in entries]
    rest = [f"({len(rows) - MAX_FOUND} more)"] if len(rows) > MAX_FOUND else []
    return "\n".join([f"{below or '.'}: {count_of(len(rows), 'entry')}", *rows[:MAX_FOUND], *rest])


def _size(path: Path) -> str:
    return f"{path.stat().st_size:,} bytes" if path.is_file() else "no file"


def similar(path: str) -> str:
    """The files most like one: by the words of their names, by their type, by where they are."""
    own = existing(path, "file")
    name = shown(own)
    rated = [(_likeness(name, each), each) for each in files()[0] if each != name]
    best = sorted((pair for pair in rated if pair[0] > 1), key=lambda pair: (-pair[0], pair[1]))[:10]
    if not best:
        return f"No file is like {name}."
    return f"Most like {name}, best first:\n" + "\n".join(each for _, each in best)


def _likeness(left: str, right: str) -> float:
    """A shared word of the names counts 3, a shared folder at the start of the paths 1, the type 1."""
    a, b = PurePosixPath(left), PurePosixPath(right)
    words = len(_words(a.stem) & _words(b.stem)) * 3
    folders = len(set(a.parents) & set(b.parents)) - 1  # all have the project itself
    same_folder = 1 if a.parent == b.parent else 0
    kind = 1 if a.suffix == b.suffix else 0
    return words + folders + same_folder + kind if words or (kind and same_folder) else 0


def _words(stem: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", stem)} - {"test", "tests", "spec"}
