"""The colours of pictures, light and dark, for each type of node and each state of a run.

The contrast of ink on fill is at least 4.5 in both. No meaning depends on a colour alone: the shape shows the type,
words give the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sleipnir.graph.draw.picture import FINISH, MISSING, START, State


@dataclass(frozen=True)
class Colour:
    fill: str
    line: str
    ink: str


@dataclass(frozen=True)
class Palette:
    """`paper` is the background, `ink` for titles, `faint` for secondary texts, `line` for arrows, `way` for taken
    arrows."""

    paper: str
    ink: str
    faint: str
    line: str
    way: str
    kinds: Mapping[str, Colour]
    states: Mapping[State, Colour]


_GREY = Colour("#f1f4f8", "#7b8794", "#1f2933")
_GREY_DARK = Colour("#1d232c", "#76818f", "#e3e8ee")

STATES: Final[Mapping[State, Colour]] = {
    "done": Colour("#dcf3e2", "#2f8f4e", "#12351f"),
    "running": Colour("#d8e8fd", "#2468c9", "#0f2b52"),
    "waiting": Colour("#fdf0cf", "#b27a06", "#402c02"),
    "queued": Colour("#ece8fb", "#6f5bc4", "#2a2152"),
    "failed": Colour("#fcdfdd", "#c9352b", "#571410"),
}

LIGHT: Final = Palette(
    paper="#ffffff",
    ink="#1f2933",
    faint="#5f6b7a",
    line="#7b8794",
    way="#1f2933",
    kinds={
        START: Colour("#3e4c59", "#3e4c59", "#ffffff"),
        FINISH: Colour("#ffffff", "#3e4c59", "#1f2933"),
        MISSING: Colour("#ffffff", "#c9352b", "#a1231b"),
        "script": _GREY,
        "function": Colour("#e3f4f4", "#2b8a8a", "#0d3b3b"),
        "llm": Colour("#f0eafc", "#7c55cf", "#33206b"),
        "agent": Colour("#e6edfd", "#4468d0", "#1b2f6b"),
        "rag": Colour("#fcf3de", "#b07d14", "#4a3406"),
        "approval": Colour("#fdebe1", "#cc6328", "#5a2708"),
        "input": Colour("#fce8ee", "#c24a70", "#5c1830"),
        "map": Colour("#e5f4e8", "#3f8f52", "#15411f"),
        "router": Colour("#eef0e2", "#7d8340", "#343712"),
        "join": Colour("#e8ebef", "#52606d", "#1f2933"),
        "wait": Colour("#e4f1f9", "#3a7ca5", "#12364d"),
        "tools": Colour("#f7ece4", "#96694a", "#3f2817"),
        "end": Colour("#e4e7eb", "#3e4c59", "#1f2933"),
    },
    states=STATES,
)

DARK: Final = Palette(
    paper="#12161c",
    ink="#e3e8ee",
    faint="#9aa5b3",
    line="#76818f",
    way="#e3e8ee",
    kinds={
        START: Colour("#c5ced8", "#c5ced8", "#12161c"),
        FINISH: Colour("#12161c", "#c5ced8", "#e3e8ee"),
        MISSING: Colour("#12161c", "#f0776d", "#ff9a92"),
        "script": _GREY_DARK,
        "function": Colour("#12302f", "#46adad", "#c9f0ee"),
        "llm": Colour("#271f40", "#a083ea", "#e4d9ff"),
        "agent": Colour("#1a2546", "#7a99f2", "#d8e2ff"),
        "rag": Colour("#33270c", "#d3a23c", "#fbe8bd"),
        "approval": Colour("#3a2012", "#ea8850", "#ffdcc7"),
        "input": Colour("#3a1824", "#e67c9d", "#ffd6e2"),
        "map": Colour("#153019", "#62b877", "#cdf0d4"),
        "router": Colour("#282a14", "#a9b066", "#ecefc8"),
        "join": Colour("#252b33", "#9aa5b3", "#e3e8ee"),
        "wait": Colour("#12293a", "#5fa8d3", "#cde6f5"),
        "tools": Colour("#2e2219", "#c39a7a", "#f2e2d5"),
        "end": Colour("#2a313a", "#c5ced8", "#f1f4f8"),
    },
    states={
        "done": Colour("#14351f", "#4cb872", "#cff3da"),
        "running": Colour("#12305a", "#5c9df2", "#d6e7ff"),
        "waiting": Colour("#3d2f08", "#dba62e", "#fdecc0"),
        "queued": Colour("#2a2350", "#9d8bee", "#e4ddff"),
        "failed": Colour("#4a1916", "#f0776d", "#ffd9d6"),
    },
)
