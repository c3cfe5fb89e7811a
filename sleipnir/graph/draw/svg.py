"""A graph as an SVG, written without other programs, scripts or external fonts.

`auto` holds a light and a dark version in one file and follows the reader's setting; `light` and `dark` are one of the
two without CSS variables, for programs that do not support them. Texts are shortened to fit; tooltips hold the full
text. A legend explains the symbols that the picture uses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Literal, TypeAlias

from sleipnir.graph.draw.colours import DARK, LIGHT, Palette
from sleipnir.graph.draw.layout import Curve, Direction, Layout, Link, Point, Side, Size, layout
from sleipnir.graph.draw.picture import BAR, FINISH, START, Arrow, Picture, RunProgress, Shape, picture
from sleipnir.graph.draw.shapes import SHEETS, corner_radius, dent, outline, size_around
from sleipnir.graph.draw.text import one_line, width
from sleipnir.graph.model import Graph

Theme: TypeAlias = Literal["auto", "light", "dark"]

_MARGIN = 20.0
_TITLE, _SMALL = 13.0, 11.0  # font sizes
_LONGEST_TITLE, _LONGEST_LABEL, _LONGEST_NOTE = 34, 30, 44
_HEAD = Size(8.0, 9.0)
_LEGEND_LINE, _LEGEND_GAP = 22.0, 22.0
_FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(
    graph: Graph, *, progress: RunProgress | None = None, direction: Direction = "TB", theme: Theme = "auto"
) -> str:
    """An SVG document. The same values give the same text."""
    return _Sheet(picture(graph, progress), direction, theme).text()


def page_svg(graph: Graph, *, progress: RunProgress | None, links: Mapping[str, str], selected: str | None) -> str:
    """The drawing as a part of a page that has the styles: an `<svg>` without heading, legend and `<style>`. A node of
    `links` is a link to that URL; the `selected` one has the class `sel`."""
    return _Sheet(picture(graph, progress), "TB", "auto").part(links, selected)


class _Sheet:
    """Builds one document."""

    def __init__(self, drawn: Picture, direction: Direction, theme: Theme) -> None:
        self.picture, self.direction, self.theme = drawn, direction, theme
        self.shapes = {shape.name: shape for shape in drawn.shapes}
        self.arrows = _one_loop_each(drawn.arrows)
        self.shows_run = drawn.caption is not None
        self.sizes = {name: self._size(shape) for name, shape in self.shapes.items()}
        self.layout = self._laid_out()
        self.legend = list(_legend(self.arrows, drawn.shapes, shows_run=self.shows_run))

    def text(self) -> str:
        """The SVG document."""
        heading = self._heading()
        top = _MARGIN + (30.0 if heading else 0.0)
        wide = max(self.layout.size.width, 300.0 if self.legend else 0.0, _heading_width(self.picture))
        legend, legend_height = _legend_lines(self.legend, wide)
        bottom = top + self.layout.size.height + (24.0 if self.legend else 0.0)
        page = Size(math.ceil(wide + 2 * _MARGIN), math.ceil(bottom + legend_height + _MARGIN))
        left = _MARGIN + (wide - self.layout.size.width) / 2
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="sleipnir" role="img" aria-labelledby="sleipnir-title'
            f' sleipnir-desc" viewBox="0 0 {_n(page.width)} {_n(page.height)}" width="{_n(page.width)}"'
            f' height="{_n(page.height)}">',
            f'<title id="sleipnir-title">{_xml(self.picture.title)}</title>',
            f'<desc id="sleipnir-desc">{_xml(self._description())}</desc>',
            f"<style>{self._style()}</style>",
            f'<rect class="paper" width="{_n(page.width)}" height="{_n(page.height)}"/>',
            *heading,
            f'<g transform="translate({_n(left)} {_n(top)})">',
            *self._ways(),
            *self._labels(),
            *self._nodes(),
            "</g>",
            f'<g class="legend" transform="translate({_n(_MARGIN)} {_n(bottom)})">',
            *legend,
            "</g>",
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def part(self, links: Mapping[str, str], selected: str | None) -> str:
        """The drawing alone, with links."""
        size = self.layout.size
        page = Size(math.ceil(size.width + 2 * _MARGIN), math.ceil(size.height + 2 * _MARGIN))
        parts = [
            f'<svg class="sleipnir" role="group" aria-label="{_xml(self.picture.title)}: {_xml(self._description())}"'
            f' viewBox="0 0 {_n(page.width)} {_n(page.height)}" width="{_n(page.width)}" height="{_n(page.height)}">',
            f'<g transform="translate({_n(_MARGIN)} {_n(_MARGIN)})">',
            *self._ways(),
            *self._labels(),
            *(
                self._linked(shape, node, links, selected)
                for shape, node in zip(self.shapes.values(), self._nodes(), strict=True)
            ),
            "</g>",
            "</svg>",
        ]
        return "\n".join(parts)

    @staticmethod
    def _linked(shape: Shape, drawn: str, links: Mapping[str, str], selected: str | None) -> str:
        if shape.title not in links or shape.kind in (START, FINISH, BAR):
            return drawn
        css = ' class="sel" aria-current="true"' if shape.title == selected else ""
        return f'<a href="{_xml(links[shape.title])}"{css}>{drawn}</a>'

    # Sizes.

    def _size(self, shape: Shape) -> Size:
        if shape.kind == BAR:
            meeting = sum(arrow.target == shape.name for arrow in self.picture.arrows)
            bar = Size(min(max(_bar_width(shape), 18.0 * meeting), 220.0), 16.0)
            return bar if self.direction == "TB" else Size(_bar_width(shape), max(16.0, min(14.0 * meeting, 120.0)))
        if shape.kind == START:
            return Size(18.0, 18.0)
        if shape.kind == FINISH:
            return Size(46.0, 46.0)
        lines = _lines(shape)
        text = Size(max(width(line.text, line.size) for line in lines), sum(line.height for line in lines))
        return size_around(shape.kind, text)

    def _laid_out(self) -> Layout:
        bars = {name for name, shape in self.shapes.items() if shape.kind == BAR}
        links = [
            Link(
                arrow.source,
                arrow.target,
                _label_size(arrow),
                main=arrow.style == "solid",
                bundle=arrow.source if arrow.target in bars else arrow.style,
            )
            for arrow in self.arrows
        ]
        return layout(self.sizes, links, self.direction, dent=self._dent, wide=bars)

    def _dent(self, name: str, side: Side, offset: float) -> float:
        return dent(self.shapes[name].kind, self.sizes[name], side, offset)

    # The texts around the drawing.

    def _description(self) -> str:
        nodes = sum(shape.kind not in (START, FINISH, BAR) for shape in self.picture.shapes)
        counts = f"{_count(nodes, 'node')}, {_count(len(self.arrows), 'arrow')}"
        sentences = [self.picture.description, self.picture.caption or "", counts]
        return ". ".join(part.strip().rstrip(".") for part in sentences if part.strip())

    def _heading(self) -> list[str]:
        if self.picture.caption is None:
            return []
        title, caption = _heading_texts(self.picture)
        after = _MARGIN + width(title, _TITLE) + 12.0
        return [
            f'<text class="heading" x="{_n(_MARGIN)}" y="{_n(_MARGIN + 12)}">{_xml(title)}</text>',
            f'<text class="caption" x="{_n(after)}" y="{_n(_MARGIN + 12)}">{_xml(caption)}</text>',
        ]

    def _style(self) -> str:
        classes = sorted({_class(shape, shows_run=self.shows_run) for shape in self.picture.shapes} | {BAR})
        match self.theme:
            case "light" | "dark":
                values = _values(LIGHT if self.theme == "light" else DARK, classes)
                return re.sub(r"var\(--([\w-]+)\)", lambda match: values[match[1]], _rules(classes))
            case "auto":
                light, dark = (_declarations(_values(palette, classes)) for palette in (LIGHT, DARK))
                rules = _with_fallbacks(_rules(classes), _values(LIGHT, classes))
                return f"{light}@media (prefers-color-scheme:dark){{{dark}}}{rules}"

    # The drawing.

    def _ways(self) -> Iterator[str]:
        """The arrows; those that a run took come last, so that they are drawn above the others."""
        pairs = zip(self.arrows, self.layout.routes, strict=True)
        drawn: set[tuple[Curve, str]] = set()
        for arrow, route in sorted(pairs, key=lambda pair: pair[0].taken):
            css = f"way {arrow.style}" + (" taken" if arrow.taken else " faded" if self.shows_run else "")
            fresh = [piece for piece in route.pieces if (piece, css) not in drawn]  # links of a bundle share pieces
            drawn |= {(piece, css) for piece in fresh}
            path = _path(fresh, headed=fresh[-1:] == [route.pieces[-1]]) if fresh else ""
            yield f'<g class="{css}">{_tooltip(self._arrow_text(arrow))}{path}</g>'

    def _arrow_text(self, arrow: Arrow) -> str:
        source, target = self.shapes[arrow.source], self.shapes[arrow.target]
        label = f": {arrow.label}" if arrow.label else ""
        return f"{source.title} → {target.title}{label}"

    def _labels(self) -> Iterator[str]:
        for arrow, route in zip(self.arrows, self.layout.routes, strict=True):
            size = _label_size(arrow)
            if size is None or route.label is None:
                continue
            faded = " faded" if self.shows_run and not arrow.taken else ""
            x, y = route.label
            shown = one_line(arrow.label, _LONGEST_LABEL)
            yield (
                f'<g class="label{faded}">{_tooltip(self._arrow_text(arrow))}'
                f'<rect x="{_n(x - size.width / 2)}" y="{_n(y - size.height / 2)}" width="{_n(size.width)}"'
                f' height="{_n(size.height)}" rx="4"/>'
                f'<text x="{_n(x)}" y="{_n(y + 4)}">{_xml(shown)}</text></g>'
            )

    def _nodes(self) -> Iterator[str]:
        for name, shape in self.shapes.items():
            place, size = self.layout.places[name], self.sizes[name]
            note = shape.mark.note if shape.mark else ""
            tooltip = _tooltip(" · ".join(text for text in (shape.title, shape.subtitle, note) if text))
            css = f"node {_class(shape, shows_run=self.shows_run)}"
            yield (
                f'<g class="{css}" transform="translate({_n(place.x)} {_n(place.y)})">'
                f"{tooltip}{_drawn(shape, size)}{_words(shape)}</g>"
            )


@dataclass(frozen=True)
class _Line:
    """A line of text in a node."""

    text: str
    css: str
    size: float
    height: float


def _lines(shape: Shape) -> list[_Line]:
    lines = [_Line(one_line(shape.title, _LONGEST_TITLE) or "(empty)", "title", _TITLE, 17.0)]
    if shape.subtitle:
        lines.append(_Line(shape.subtitle, "sub", _SMALL, 14.0))
    if shape.mark and shape.mark.note:
        lines.append(_Line(one_line(shape.mark.note, _LONGEST_NOTE), "note", _SMALL, 15.0))
    return lines


def _class(shape: Shape, *, shows_run: bool) -> str:
    """The CSS class that colours a shape: the state in the picture of a run, else the type."""
    if shape.mark:
        return shape.mark.state
    return "unreached" if shows_run and shape.kind not in (START, FINISH, BAR) else shape.kind


def _label_size(arrow: Arrow) -> Size | None:
    shown = one_line(arrow.label, _LONGEST_LABEL)
    return Size(width(shown, _SMALL) + 10.0, 18.0) if shown else None


def _one_loop_each(arrows: Iterable[Arrow]) -> list[Arrow]:
    """The arrows, with all loops of one node merged into one arrow with all their labels."""
    loops: dict[str, list[Arrow]] = {}
    merged: list[Arrow] = []
    for arrow in arrows:
        if arrow.source != arrow.target:
            merged.append(arrow)
        else:
            loops.setdefault(arrow.source, []).append(arrow)
    for same in loops.values():
        labels = dict.fromkeys(arrow.label for arrow in same if arrow.label)
        merged.append(replace(same[0], label=", ".join(labels), taken=any(arrow.taken for arrow in same)))
    return merged


# Nodes.


def _drawn(shape: Shape, size: Size) -> str:
    x, y = size.width / 2, size.height / 2
    match shape.kind:
        case "start":
            return f'<circle r="{_n(x)}"/>'
        case "finish":
            return f'<circle r="{_n(x)}"/><circle class="inner" r="{_n(x - 4)}"/>'
        case "map":
            front = Size(size.width - SHEETS, size.height - SHEETS)
            return _box(Point(SHEETS - x, -y), front, 4.0) + _box(Point(-x, SHEETS - y), front, 4.0)
        case "rag":
            lid = f'<path class="line" d="M{_n(-x)} {_n(5 - y)}A{_n(x)} 5 0 0 0 {_n(x)} {_n(5 - y)}"/>'
            return _polygon(outline("rag", size)) + lid
        case "agent":
            sides = f"M{_n(5 - x)} {_n(-y)}V{_n(y)}M{_n(x - 5)} {_n(-y)}V{_n(y)}"
            return _box(Point(-x, -y), size, 4.0) + f'<path class="line" d="{sides}"/>'
        case "function" | "approval" | "input" | "router" | "join" | "wait":
            return _polygon(outline(shape.kind, size))
        case _:
            return _box(Point(-x, -y), size, min(corner_radius(shape.kind), y))


def _box(corner: Point, size: Size, radius: float) -> str:
    place = f'x="{_n(corner.x)}" y="{_n(corner.y)}" width="{_n(size.width)}" height="{_n(size.height)}"'
    return f'<rect {place} rx="{_n(radius)}"/>'


def _polygon(corners: Sequence[Point]) -> str:
    return f'<path d="M{"L".join(f"{_n(corner.x)} {_n(corner.y)}" for corner in corners)}Z"/>'


def _words(shape: Shape) -> str:
    if shape.kind == START:
        return ""
    if shape.kind in (BAR, FINISH):
        return f'<text class="note" y="4">{_xml(shape.title)}</text>'
    lines = _lines(shape)
    aside = -SHEETS / 2 if shape.kind == "map" else 0.0
    below = SHEETS / 2 if shape.kind == "map" else 3.0 if shape.kind == "rag" else 0.0
    top = below - sum(line.height for line in lines) / 2
    texts = []
    for line in lines:
        base = top + line.height * 0.76
        texts.append(f'<text class="{line.css}" x="{_n(aside)}" y="{_n(base)}">{_xml(line.text)}</text>')
        top += line.height
    return "".join(texts)


def _bar_width(shape: Shape) -> float:
    return max(width(shape.title, _SMALL) + 14.0, 44.0)


# Arrows.


def _path(pieces: Sequence[Curve], *, headed: bool) -> str:
    """A line; with a head, the line ends where the head begins."""
    last = pieces[-1]
    tip, back = last.end, last.arrive if last.arrive != last.end else last.start
    far = math.hypot(tip.x - back.x, tip.y - back.y) or 1.0
    along = Point((tip.x - back.x) / far, (tip.y - back.y) / far)
    short = min(_HEAD.width - 1.0, far)
    cut = _shortened(last, Point(along.x * short, along.y * short)) if headed else last
    line = _joined([*pieces[:-1], cut])
    steps = "".join(_step(piece) for piece in line)
    start = line[0].start
    return f'<path d="M{_n(start.x)} {_n(start.y)}{steps}"/>{_head(tip, along) if headed else ""}'


def _joined(pieces: Sequence[Curve]) -> list[Curve]:
    """The same line, with consecutive straight pieces merged."""
    joined: list[Curve] = []
    for piece in pieces:
        if joined and piece.is_straight and joined[-1].is_straight:
            start = joined.pop().start
            piece = Curve(start, start, piece.end, piece.end)
        joined.append(piece)
    return joined


def _shortened(piece: Curve, by: Point) -> Curve:
    end = Point(piece.end.x - by.x, piece.end.y - by.y)
    if piece.arrive == piece.end:
        return Curve(piece.start, piece.start, end, end)
    return piece._replace(end=end, arrive=Point(piece.arrive.x - by.x / 2, piece.arrive.y - by.y / 2))


def _step(piece: Curve) -> str:
    if piece.is_straight:
        return f"L{_n(piece.end.x)} {_n(piece.end.y)}"
    return "C" + " ".join(f"{_n(point.x)} {_n(point.y)}" for point in (piece.leave, piece.arrive, piece.end))


def _head(tip: Point, along: Point) -> str:
    base = Point(tip.x - along.x * _HEAD.width, tip.y - along.y * _HEAD.width)
    half = _HEAD.height / 2
    left = Point(base.x - along.y * half, base.y + along.x * half)
    right = Point(base.x + along.y * half, base.y - along.x * half)
    return f'<path class="head" d="M{_n(tip.x)} {_n(tip.y)}L{_n(left.x)} {_n(left.y)}L{_n(right.x)} {_n(right.y)}Z"/>'


# Heading and legend.


def _heading_texts(drawn: Picture) -> tuple[str, str]:
    return one_line(drawn.title, 40), one_line(drawn.caption or "", 100)


def _heading_width(drawn: Picture) -> float:
    if drawn.caption is None:
        return 0.0
    title, caption = _heading_texts(drawn)
    return width(title, _TITLE) * 1.1 + 12.0 + width(caption, 12.0)


@dataclass(frozen=True)
class _Sample:
    """An entry of the legend: a drawing, 26 wide, and its meaning."""

    drawing: str
    text: str


def _legend(arrows: Sequence[Arrow], shapes: Sequence[Shape], *, shows_run: bool) -> Iterator[_Sample]:
    """The entries of the legend; none for a graph with plain arrows only."""
    styles = {arrow.style for arrow in arrows}
    if shows_run:
        yield from _state_samples(shapes)
        yield _Sample(_sample_way("solid taken"), "taken")
    if styles != {"solid"}:
        yield _Sample(_sample_way("solid"), "next")
    if "dashed" in styles:
        yield _Sample(_sample_way("dashed"), "on a condition")
    if "dotted" in styles:
        yield _Sample(_sample_way("dotted"), "if the run asks for it")
    if any(shape.kind == BAR for shape in shapes):
        yield _Sample('<g class="node bar"><rect x="0" y="-4" width="26" height="8" rx="3"/></g>', "waits for several")


def _state_samples(shapes: Sequence[Shape]) -> Iterator[_Sample]:
    counts: dict[str, int] = {}
    for shape in shapes:
        if shape.kind not in (START, FINISH, BAR):
            state = _class(shape, shows_run=True)
            counts[state] = counts.get(state, 0) + 1
    for state in ("done", "running", "waiting", "queued", "failed", "unreached"):
        if state in counts:
            drawing = f'<g class="node {state}"><rect x="2" y="-7" width="22" height="14" rx="4"/></g>'
            yield _Sample(drawing, f"{'not reached' if state == 'unreached' else state}: {counts[state]}")


def _sample_way(classes: str) -> str:
    return f'<g class="way {classes}"><path d="M0 0H20"/>{_head(Point(27.0, 0.0), Point(1.0, 0.0))}</g>'


def _legend_lines(samples: Sequence[_Sample], wide: float) -> tuple[list[str], float]:
    """The samples in lines that fit the width, and their total height."""
    if not samples:
        return [], 0.0
    lines, x, y = [], 0.0, _LEGEND_LINE / 2
    for sample in samples:
        needed = 34.0 + width(sample.text, _SMALL)
        if x and x + needed > wide:
            x, y = 0.0, y + _LEGEND_LINE
        text = f'<text x="34" y="4">{_xml(sample.text)}</text>'
        lines.append(f'<g transform="translate({_n(x)} {_n(y)})">{sample.drawing}{text}</g>')
        x += needed + _LEGEND_GAP
    return lines, y + _LEGEND_LINE / 2


# Style.


def _values(palette: Palette, classes: Iterable[str]) -> dict[str, str]:
    """The CSS variables of a palette."""
    values = {name: getattr(palette, name) for name in ("paper", "ink", "faint", "line", "way")}
    for name in classes:
        if name == BAR:
            values |= {"bar-fill": palette.line, "bar-line": palette.line, "bar-ink": palette.paper}
        elif name == "unreached":
            values |= {"unreached-fill": palette.paper, "unreached-line": palette.line, "unreached-ink": palette.faint}
        else:
            colour = palette.states.get(name) or palette.kinds[name]  # type: ignore[call-overload]
            values |= {f"{name}-fill": colour.fill, f"{name}-line": colour.line, f"{name}-ink": colour.ink}
    return values


def _declarations(values: dict[str, str]) -> str:
    return f".sleipnir{{{';'.join(f'--{name}:{value}' for name, value in values.items())}}}"


def _with_fallbacks(rules: str, values: dict[str, str]) -> str:
    """Put the value of each colour before its variable: readers without CSS variables (librsvg, Inkscape) use the value
    and would otherwise draw in black."""
    return re.sub(
        r"(fill|stroke|background):var\(--([\w-]+)\)",
        lambda match: f"{match[1]}:{values[match[2]]};{match[0]}",
        rules,
    )


def _rules(classes: Iterable[str]) -> str:
    rules = {
        "": f"font-family:{_FONTS};background:var(--paper)",
        ".paper": "fill:var(--paper)",
        "text": f"font-size:{_n(_SMALL)}px;fill:var(--faint)",
        ".heading": f"font-size:{_n(_TITLE)}px;font-weight:600;fill:var(--ink)",
        ".caption": "font-size:12px",
        ".way path": "fill:none;stroke:var(--line);stroke-width:1.5",
        ".way.dashed path": "stroke-dasharray:6 4",
        ".way.dotted path": "stroke-dasharray:.1 4.5;stroke-width:2.2;stroke-linecap:round",
        ".way.taken path": "stroke:var(--way);stroke-width:2.5",
        ".way .head": "fill:var(--line);stroke:none",
        ".way.taken .head": "fill:var(--way);stroke:none",
        ".way.faded": "opacity:.6",
        ".label rect": "fill:var(--paper)",
        ".label text": "text-anchor:middle;fill:var(--ink)",
        ".label.faded text": "fill:var(--faint)",
        ".node rect,.sleipnir .node path,.sleipnir .node circle": "stroke-width:1.5",
        ".node text": "text-anchor:middle",
        ".node .title": f"font-size:{_n(_TITLE)}px;font-weight:500",
        ".node .sub": "opacity:.75",
        ".node .note": "font-weight:500",
    }
    for name in classes:
        fill = f"fill:var(--{name}-fill);stroke:var(--{name}-line)"
        rules[f".{name} rect,.sleipnir .{name} path,.sleipnir .{name} circle"] = fill
        rules[f".{name} text"] = f"fill:var(--{name}-ink)"
    rules[".node .line"] = "fill:none"
    rules[".missing rect,.sleipnir .unreached rect,.sleipnir .unreached path"] = "stroke-dasharray:4 3"
    return "".join(f".sleipnir {selector}{{{rule}}}".replace(" {", "{") for selector, rule in rules.items())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _tooltip(text: str) -> str:
    return f"<title>{_xml(text)}</title>"


def _xml(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def _n(number: float) -> str:
    """A length in pixels, rounded to one decimal."""
    text = f"{number:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
