"""The fenced code blocks of the documents, and how each is checked.

The first word after the fence is the block's language, the second its kind, where the language has several:

bash            commands, run as written (test_commands.py)
console         commands behind `$ `, run as written, and what they print
text usage      forms of commands with words in capitals to fill in, and what they do; the commands must exist
text            what is neither run nor read by a program: pictures, formulas, tables of measurements
mermaid         a picture that ops/generate writes
yaml            a graph, some of its nodes, or some of its keys outside the nodes (test_graphs.py)
yaml agent      a config.yaml agent, or some of its keys
yaml config     keys of the configuration directory's config.yaml
yaml limits     a limits.yaml
yaml script     what a scripted model says, for `python -m sleipnir.testing serve`
yaml kubernetes a part of a pod
yaml comment    comments alone
python          a program, or functions that the page's tests call (test_python.py)
python program  a part of the page's program, which runs in this process (test_python_graphs.py)
typescript, bash tool, markdown skill
                files that an agent or its tools are made of (test_files.py)
json, jsonl, ini, toml
                read by a parser (test_files.py)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/*.md")),
    *(ROOT / folder / "README.md" for folder in ("agents", "ops", "scheduler", "workers")),
    *sorted(ROOT.glob("agents/*/README.md")),
]
CLASSES = {
    "bash", "console", "text usage", "text", "mermaid", "yaml", "yaml agent", "yaml config", "yaml limits",
    "yaml script", "yaml kubernetes", "yaml comment", "python", "python program", "typescript", "bash tool",
    "markdown skill", "json", "jsonl", "ini", "toml",
}  # fmt: skip

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block. `page` is relative to the repository, `line` that of the fence."""

    page: str
    line: int
    info: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@cache
def blocks_of(page: Path) -> Sequence[Block]:
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(name, text.count("\n", 0, found.start()) + 1, found["info"].strip(), found["text"])
        for found in FENCE.finditer(text)
    ]


def blocks(*infos: str) -> list[Block]:
    """Those of these classes, in the order of the pages."""
    return [block for page in PAGES for block in blocks_of(page) if block.info in infos]


def pages_with(*infos: str) -> list[str]:
    return list(dict.fromkeys(block.page for block in blocks(*infos)))
