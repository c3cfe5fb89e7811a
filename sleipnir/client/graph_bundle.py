"""Prepares a graph that a program has built: its document, and a bundle of the Python files that its functions are in.

The files are those of one folder, from which the program imports them: the file of each function and what these files
import from there; of a package all of its files. Installed modules do not travel. The program that runs, `__main__`, is
referred to by its file, which workers import under its own name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sleipnir.agents.bundle import Bundle, is_left_out, pack_files
from sleipnir.errors import GraphError, Problem, UsageError
from sleipnir.graph.load import GRAPH_FILE, AgentFolder, of_document
from sleipnir.graph.loaded import LoadedGraph
from sleipnir.python_graph import sources
from sleipnir.python_graph.agent_modules import GUARD
from sleipnir.python_graph.compiled import DEFAULT_NAME, CompiledGraph
from sleipnir.settings import Settings

_MAIN: Final = "__main__"


def defined(graph: CompiledGraph) -> tuple[AgentFolder, LoadedGraph]:
    """The agent that a graph is, and its document. Raises GraphError with all functions that no worker could find, and
    UsageError for files in several folders."""
    modules = _modules(graph)
    root = _root(modules)
    references = sources.references_to(root)
    if problems := sources.unreachable(graph.parts, references):
        raise GraphError("the graph cannot leave this process:" + "".join(f"\n  {each}" for each in problems), problems)
    if _MAIN in modules:
        _refuse_unguarded(modules[_MAIN])
    document = graph.travelling(references)
    first = next(iter(modules.values()), None)
    name = graph.name if graph.name != DEFAULT_NAME or first is None else first.stem
    loaded = of_document(document.data, document.places, Path(graph.parts.place[0]))
    return AgentFolder(name, root, "graph", is_python=True), loaded


def packed(graph: CompiledGraph, folder: AgentFolder, loaded: LoadedGraph, settings: Settings) -> Bundle:
    """Raises BundleError if the files are too large."""
    assert loaded.text is not None
    files = {path.relative_to(folder.path).as_posix(): path for path in _files(_modules(graph).values(), folder.path)}
    return pack_files(
        folder.path,
        {**files, GRAPH_FILE: loaded.text.encode()},
        limit_bytes=settings.max_bundle_bytes,
        unpacked_bytes=settings.max_unpacked_bytes,
    )


def _modules(graph: CompiledGraph) -> dict[str, Path]:
    """The modules of the graph's functions and classes that are not installed, with their files."""
    found: dict[str, Path] = {}
    for target in sources.targets(graph.parts):
        module = getattr(target, "__module__", None) or type(target).__module__
        path = sources.file_of(module)
        if path is not None and not sources.is_installed(path):
            found[module] = path
    return found


def _root(modules: dict[str, Path]) -> Path:
    """The folder that the modules are imported from."""
    roots = {_imported_from(module, path): path for module, path in modules.items()}
    if len(roots) > 1:
        listed = "".join(f"\n  {path}" for path in roots.values())
        raise UsageError(f"the functions of the graph are imported from several folders; move them to one:{listed}")
    return next(iter(roots), Path.cwd())


def _imported_from(module: str, path: Path) -> Path:
    if module == _MAIN:
        spec = getattr(sys.modules[_MAIN], "__spec__", None)  # python -m package.module
        module = spec.name if spec is not None else path.stem
    names = module.split(".") if path.stem != "__init__" else [*module.split("."), "__init__"]
    if tuple(names) == path.with_suffix("").parts[-len(names) :]:
        return path.parents[len(names) - 1]
    return path.parent  # imported from its place, under another name


def _files(start: Any, root: Path) -> set[Path]:
    """These files, what they import from `root`, and so on; a file of a package stands for the package."""
    found: set[Path] = set()
    waiting = [part for path in start for part in _whole(path, root)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            for name in _imports(path):
                if _is_imported_from(name, root):
                    waiting += [part for each in (root / f"{name}.py", root / name) for part in _whole(each, root)]
    return found


def _whole(path: Path, root: Path) -> Sequence[Path]:
    """A file at the top of `root`, or all Python files of the package that `path` is in; none if it does not exist."""
    top = root / path.relative_to(root).parts[0]
    if not top.is_dir():
        return [top] if top.is_file() else []
    return [
        file for file in sorted(top.rglob("*.py"))
        if file.is_file() and not any(is_left_out(part) for part in file.relative_to(root).parts)
    ]  # fmt: skip


def _is_imported_from(name: str, root: Path) -> bool:
    """False for a module that this process has from elsewhere: a file of its name in `root` is another one."""
    if sources.is_installed(root / name):
        return False
    module = sys.modules.get(name)
    if module is None:
        return True  # imported later, by a function
    own = getattr(module, "__file__", None)
    places = [own] if own else list(getattr(module, "__path__", ()))
    return any(Path(place).resolve().is_relative_to(root) for place in places)


def _imports(path: Path) -> Iterator[str]:
    """The first names of absolute imports of a file."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return  # not of the files that this process has imported; a worker reports it if it imports it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _refuse_unguarded(path: Path) -> None:
    """Raises GraphError if the program submits at its top level without the guard: workers import it."""
    frame = sys._getframe()
    while frame.f_back is not None and not (
        frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == _MAIN
    ):
        frame = frame.f_back
    if frame.f_code.co_name != "<module>" or Path(frame.f_code.co_filename).resolve() != path:
        return
    line = frame.f_lineno
    if any(node.lineno <= line <= (node.end_lineno or line) for node in _guards(path)):
        return
    message = (
        f"workers import this file to find its functions, and would submit the run again: write `{GUARD}` above this "
        "call"
    )
    problem = Problem("error", message, str(path), line, code=sources.CODE)
    raise GraphError(str(problem), [problem])


def _guards(path: Path) -> list[ast.If]:
    """The statements of the file that do something only if it is the program."""
    tree = ast.parse(path.read_bytes())
    return [node for node in ast.walk(tree) if isinstance(node, ast.If) and "__name__" in ast.dump(node.test)]
