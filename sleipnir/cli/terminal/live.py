"""Streamed text of models, and text that nodes emit, as lines at the bottom of a terminal or lines of a log.

Both omit obsolete text: a text that restarts replaces the previous one, and text after the end of its visit is not
shown, because the narration then has the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sleipnir.runs.plain_text import one_line, printable

if TYPE_CHECKING:
    from sleipnir.runs.views import RunEvent

INDENT = " " * 6  # as lines of the narration that continue another
MOST_LINES = 6  # of one text; several have two each
MOST_TEXTS = 4
_MOST_KEPT = 2_000  # characters of a text: more than can be seen of it

Data: TypeAlias = Mapping[str, Any]


@dataclass
class ModelText:
    """A streamed text; `draft` is its number within its visit, `over` means that it is complete."""

    node: str
    draft: tuple[int, int, int]
    text: str = ""
    over: bool = False

    def add(self, data: Data) -> None:
        missing = f" [{data['lost']:,} characters are missing] " if data["lost"] else ""
        self.text += printable(data["text"].replace("\t", "    ")) + missing
        self.over = data["last"]


def text_of(event: RunEvent) -> Data | None:
    """The data of an event that has streamed text: of a model, or emitted by other code of a node."""
    if event.type == "custom" and event.data.get("category") == "text":
        return {"turn": 0, "draft": 1, "last": False, **event.data}
    return event.data if event.type == "text" else None


def draft_of(data: Data) -> tuple[int, int, int]:
    """Which text of its visit a piece belongs to."""
    return data["attempt"], data["turn"], data["draft"]


class ModelTexts:
    """The streamed texts of a run, the most recently updated one last."""

    def __init__(self) -> None:
        self._texts: dict[int, ModelText] = {}
        self._closed: set[int] = set()

    def __len__(self) -> int:
        return len(self._texts)

    def see(self, event: RunEvent) -> bool:
        """Process an event. Returns whether it changes the display."""
        if (data := text_of(event)) is not None:
            return self._add(data)
        before = len(self._texts)
        if event.type == "visit_closed":
            self._closed.add(event.data["seq"])
        if event.type in _ATTEMPT_ENDS:
            self._texts.pop(event.data["seq"], None)
        if event.type in _MAKES_ROOM:
            self._texts = {seq: text for seq, text in self._texts.items() if not text.over}
        if event.type == "run_ended":
            self._texts = {}
        return len(self._texts) != before

    def _add(self, data: Data) -> bool:
        if data["seq"] in self._closed:
            return False
        # A text that is over stays until another one of its node takes its place: the next turn, or the next item.
        self._texts = {seq: text for seq, text in self._texts.items() if not (text.over and text.node == data["node"])}
        text = self._texts.pop(data["seq"], None)
        if text is None or text.draft != draft_of(data):
            text = ModelText(data["node"], draft_of(data))
        self._texts[data["seq"]] = text
        text.add(data)
        return True

    def names(self) -> dict[int, str]:
        """The label of each text, if there are several: its node, with the visit's number if necessary."""
        nodes = [text.node for text in self._texts.values()]
        return {
            seq: f"{text.node}#{seq}" if nodes.count(text.node) > 1 else text.node for seq, text in self._texts.items()
        }

    def lines(self, width: int, height: int) -> list[str]:
        """The ends of the texts, within `columns`, and `rows` if possible; the oldest text on top."""
        if len(self._texts) <= 1:
            return [line for text in self._texts.values() for line in _end_of(text, "", width, min(MOST_LINES, height))]
        shown = list(self._texts)[-max(1, min(MOST_TEXTS, height // 2)) :]
        names, hidden = self.names(), len(self._texts) - len(shown)
        lines = [line for seq in sorted(shown) for line in _end_of(self._texts[seq], f"{names[seq]}: ", width, 2)]
        return [*lines, f"{INDENT}... and {hidden} more"] if hidden else lines


_ATTEMPT_ENDS = frozenset({"visit_closed", "visit_retrying", "visit_handed_back", "worker_lost"})
_MAKES_ROOM = frozenset({"visit_closed", "map_progress"})


def _end_of(text: ModelText, label: str, width: int, rows: int) -> list[str]:
    label = one_line(label[:-2], 30) + ": " if label else ""
    lines = wrapped(text.text, max(20, width - len(INDENT) - len(label)))
    if len(text.text) > _MOST_KEPT:
        text.text = "".join(lines[-MOST_LINES * 2 :])  # whole lines, so that those to come break where they would have
    seen = [line.rstrip() for line in lines if not line.isspace()][-rows:]
    return [INDENT + (label if not place else " " * len(label)) + line for place, line in enumerate(seen)]


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` cells, broken between words where possible. Joined they are the text again:
    spaces at the end of a line do not count, and a line end is part of its line."""
    from rich.cells import cell_len, chop_cells

    lines, line, used = list[str](), "", 0
    for word in re.findall(r"\n|[^\S\n]+|\S+", text):
        cells = cell_len(word)
        if word == "\n":
            lines.append(line + word)
            line, used = "", 0
        elif word.isspace() or used + cells <= width:
            line, used = line + word, used + cells
        else:
            *full, rest = chop_cells(word, width)
            lines += [*([line] if line else []), *full]
            line, used = rest, cell_len(rest)
    return [*lines, line] if line else lines


class TextLines:
    """The texts as lines for a log, each as soon as it is complete."""

    def __init__(self) -> None:
        self._open: dict[int, ModelText] = {}
        self._closed: set[int] = set()

    def see(self, event: RunEvent) -> list[str]:
        """The lines that an event completes."""
        if (data := text_of(event)) is not None:
            return self._more(data)
        if event.type == "visit_closed":
            self._closed.add(event.data["seq"])
            return self._rest(event.data["seq"])
        return [line for seq in list(self._open) for line in self._rest(seq)] if event.type == "run_ended" else []

    def _more(self, data: Data) -> list[str]:
        seq, lines = data["seq"], list[str]()
        if seq in self._closed:
            return []
        text, draft = self._open.get(seq), draft_of(data)
        if text is None or text.draft != draft:
            lines = self._rest(seq)
            if text is not None:
                lines.append(f"{INDENT}{self._label(seq, data['node'])}(begins anew)")
            text = self._open[seq] = ModelText(data["node"], draft)
        text.add(data)
        *whole, text.text = text.text.split("\n")
        lines += [f"{INDENT}{self._label(seq, text.node)}{line}" for line in whole if line.strip()]
        return lines + self._rest(seq) if text.over else lines

    def _rest(self, seq: int) -> list[str]:
        """The incomplete last line of a text that has ended."""
        text = self._open.get(seq)
        if text is None:
            return []
        label = self._label(seq, text.node)
        del self._open[seq]
        return [f"{INDENT}{label}{text.text}"] if text.text else []

    def _label(self, seq: int, node: str) -> str:
        others = [text.node for number, text in self._open.items() if number != seq]
        if not others:
            return ""
        return f"{node}#{seq}: " if node in others else f"{node}: "
