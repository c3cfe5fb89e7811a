"""Charts of the last hour, as SVG from the server: they are there without JavaScript, and change in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 600
HEIGHT: Final = 100


@dataclass(frozen=True)
class ChartLine:
    """A line through the values of one series, as the `d` of a path; gaps where there is none. `css` is its class."""

    css: str
    path: str


@dataclass(frozen=True)
class LineChart:
    """`most` is the value at the top, `label` says the finding in words; `area` is the ground below the first line."""

    label: str
    most: float
    lines: tuple[ChartLine, ...]
    area: str
    ticks: tuple[int, ...]
    """Times below the chart, in ms, at equal distances."""


def line_chart(
    label: str, times_ms: Sequence[int], series: Sequence[tuple[str, Sequence[float | None]]], *, ticks: int = 5
) -> LineChart:
    """A chart of one or more series over the same times, at least two, which begins at zero."""
    most = rounded_up(max((value for _, values in series for value in values if value is not None), default=0.0))
    step = WIDTH / (len(times_ms) - 1)
    lines = tuple(ChartLine(css, _path(values, step, most)) for css, values in series)
    last = len(times_ms) - 1
    shown = tuple(times_ms[round(last * number / (ticks - 1))] for number in range(ticks))
    return LineChart(label, most, lines, _area(series[0][1], step, most), shown)


def rounded_up(value: float) -> float:
    """The least 1, 2 or 5 times a power of ten that is not less; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))


def _path(values: Sequence[float | None], step: float, most: float) -> str:
    parts, is_open = [], False
    for number, value in enumerate(values):
        if value is None:
            is_open = False
            continue
        parts.append(f"{'L' if is_open else 'M'}{number * step:.1f} {_y(value, most):.1f}")
        if not is_open and (number + 1 == len(values) or values[number + 1] is None):
            parts.append("h2")  # a single value is a short line
        is_open = True
    return "".join(parts)


def _area(values: Sequence[float | None], step: float, most: float) -> str:
    points = "".join(f"L{number * step:.1f} {_y(value or 0.0, most):.1f}" for number, value in enumerate(values))
    return f"M0 {HEIGHT}{points}L{WIDTH} {HEIGHT}Z"


def _y(value: float, most: float) -> float:
    return HEIGHT * (1 - min(value, most) / most)
