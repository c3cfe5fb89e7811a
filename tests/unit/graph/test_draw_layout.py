"""The layout of pictures, as geometry: nothing stands on anything else, and every link is seen from end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.graph.draw.layering import layers, turned
from sleipnir.graph.draw.layout import Curve, Direction, Layout, Link, Point, Size, layout
from sleipnir.graph.draw.ordering import crossings, ordered
from tests.examples import examples

NODE = Size(100, 44)
LABEL = Size(60, 18)
Box = tuple[float, float, float, float]


def box(middle: Point, size: Size, margin: float = 0.0) -> Box:
    across, down = size.width / 2 - margin, size.height / 2 - margin
    return middle.x - across, middle.y - down, middle.x + across, middle.y + down


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def inside(point: Point, area: Box) -> bool:
    return area[0] < point.x < area[2] and area[1] < point.y < area[3]


def points(piece: Curve, count: int = 16) -> Iterator[Point]:
    """Points along a curve, both ends included."""
    for step in range(count + 1):
        t = step / count
        parts = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
        x = sum(part * point.x for part, point in zip(parts, piece, strict=True))
        y = sum(part * point.y for part, point in zip(parts, piece, strict=True))
        yield Point(x, y)


def on_border(point: Point, area: Box) -> bool:
    left, top, right, bottom = area
    on_side = min(abs(point.x - left), abs(point.x - right)) < 0.01 and top - 0.01 <= point.y <= bottom + 0.01
    on_end = min(abs(point.y - top), abs(point.y - bottom)) < 0.01 and left - 0.01 <= point.x <= right + 0.01
    return on_side or on_end


def assert_readable(sizes: dict[str, Size], links: Sequence[Link], found: Layout) -> None:
    nodes = {name: box(found.places[name], size, 0.01) for name, size in sizes.items()}
    pairs = zip(links, found.routes, strict=True)
    labels = [
        (n, box(route.label, link.label, 0.01)) for n, (link, route) in enumerate(pairs) if link.label and route.label
    ]
    assert len(labels) == sum(link.label is not None for link in links)
    for (name, one), (other, two) in combinations(nodes.items(), 2):
        assert not overlap(one, two), f"{name} lies on {other}"
    for (number, one), (other_number, two) in combinations(labels, 2):
        assert not overlap(one, two), f"label {number} lies on label {other_number}"
    for number, one in labels:
        for name, two in nodes.items():
            assert not overlap(one, two), f"label {number} lies on {name}"
    page = (-0.01, -0.01, found.size.width + 0.01, found.size.height + 0.01)
    for number, (link, route) in enumerate(zip(links, found.routes, strict=True)):
        assert on_border(route.pieces[0].start, box(found.places[link.source], sizes[link.source]))
        assert on_border(route.pieces[-1].end, box(found.places[link.target], sizes[link.target]))
        for one, two in zip(route.pieces, route.pieces[1:], strict=False):
            assert one.end == two.start, "a link is one line"
        for point in (point for piece in route.pieces for point in points(piece)):
            assert inside(point, page), f"link {number} leaves the page"
            for name, area in nodes.items():
                assert not inside(point, area), f"link {number} runs through {name}"
            for other, area in labels:
                assert other == number or not inside(point, area), f"link {number} runs over label {other}"


@st.composite
def drawings(draw: st.DrawFn) -> tuple[dict[str, Size], list[Link]]:
    """Any graph: cycles, loops, several links between the same two, parts that do not hang together."""
    count = draw(st.integers(1, 12))
    lengths = st.sampled_from([20.0, 64.0, 110.0, 190.0])
    sizes = {f"n{number}": Size(draw(lengths), draw(st.sampled_from([20.0, 44.0, 60.0]))) for number in range(count)}
    ends = st.sampled_from(list(sizes))
    labels = st.none() | st.builds(Size, lengths, st.just(18.0))
    drawn = draw(
        st.lists(st.builds(Link, ends, ends, labels, st.booleans(), st.sampled_from(["", "other"])), max_size=24)
    )
    loops = {link.source: link for link in drawn if link.source == link.target}
    return sizes, [link for link in drawn if link.source != link.target or loops[link.source] is link]


@settings(max_examples=examples(150), deadline=None)
@given(drawings(), st.sampled_from(["TB", "LR"]))
def test_in_any_graph_nothing_overlaps_and_every_link_touches_its_nodes(
    drawing: tuple[dict[str, Size], list[Link]], direction: Direction
) -> None:
    sizes, links = drawing
    found = layout(sizes, links, direction)
    assert_readable(sizes, links, found)
    assert layout(sizes, links, direction) == found, "the same graph has the same picture"


def test_a_wide_fan_is_in_one_row_and_its_labels_in_another() -> None:
    names = ["fan", *(f"t{number}" for number in range(12))]
    links = [Link("fan", name, LABEL) for name in names[1:]]
    found = layout(dict.fromkeys(names, NODE), links)
    assert len({found.places[name].y for name in names[1:]}) == 1
    assert len({route.label.y for route in found.routes if route.label}) == 1
    assert crossing_free(found)


def crossing_free(found: Layout) -> bool:
    """In a fan: the labels stand in the order of the targets."""
    ends = [(route.label.x, route.pieces[-1].end.x) for route in found.routes if route.label]
    return sorted(ends) == sorted(ends, key=lambda pair: pair[1])


def test_a_chain_is_a_straight_line() -> None:
    names = [f"n{number}" for number in range(20)]
    found = layout(dict.fromkeys(names, NODE), [Link(a, b) for a, b in pairwise(names)])
    assert len({place.x for place in found.places.values()}) == 1
    assert found.size.width == NODE.width
    assert all(piece.is_straight for route in found.routes for piece in route.pieces)


def test_the_main_path_stays_straight_next_to_a_fallback_and_an_edge_back() -> None:
    links = [Link("a", "b"), Link("b", "c"), Link("a", "c", LABEL, main=False), Link("b", "a", LABEL, main=False)]
    found = layout(dict.fromkeys("abc", NODE), links)
    assert found.places["a"].x == found.places["b"].x == found.places["c"].x


def test_a_way_back_leads_upwards_and_is_not_taken_for_another() -> None:
    found = layout(dict.fromkeys("ab", NODE), [Link("a", "b"), Link("b", "a")])
    down, up = found.routes
    assert down.pieces[0].start.y < down.pieces[-1].end.y
    assert up.pieces[0].start.y > up.pieces[-1].end.y
    assert up.pieces[0].start.x != down.pieces[-1].end.x


def test_long_links_of_a_bundle_share_their_way_to_the_same_target() -> None:
    names = [f"n{number}" for number in range(10)]
    chain = [Link(one, two) for one, two in pairwise(names)]
    aside = [Link(name, "n9", main=False, bundle="fallback") for name in names[:8]]
    found = layout(dict.fromkeys(names, NODE), chain + aside)
    assert len({route.pieces[-1] for route in found.routes[len(chain) :]}) == 1
    assert found.size.width < 2 * NODE.width, "eight lines beside each other would be wider"


def test_lying_pictures_are_standing_ones_with_their_axes_exchanged() -> None:
    sizes, links = dict.fromkeys("abc", Size(50, 50)), [Link("a", "b"), Link("a", "c", Size(30, 30)), Link("c", "c")]
    standing, lying = layout(sizes, links), layout(sizes, links, "LR")
    assert {name: (place.y, place.x) for name, place in standing.places.items()} == lying.places


def test_links_meet_a_wide_node_side_by_side_in_the_order_they_come_from() -> None:
    names = ["start", "a", "b", "c", "bar"]
    links = [Link("start", name) for name in "abc"] + [Link(name, "bar") for name in "abc"]
    found = layout(dict.fromkeys(names, NODE), links, wide=["bar"])
    arrivals = [
        (found.places[link.source].x, route.pieces[-1].end.x)
        for link, route in zip(links, found.routes, strict=True)
        if link.target == "bar"
    ]
    assert len({end for _, end in arrivals}) == 3
    assert sorted(arrivals) == sorted(arrivals, key=lambda pair: pair[1])


def test_only_arcs_that_close_a_cycle_are_turned() -> None:
    assert turned(3, [(0, 1), (1, 2), (0, 2)]) == set()
    assert turned(3, [(0, 1), (1, 2), (2, 0), (2, 1)]) == {2, 3}
    assert turned(4, [(0, 1), (3, 2), (2, 3)]) == {1}, "a part that the start does not lead to"


def test_a_node_is_below_its_sources_and_near_its_targets() -> None:
    assert layers(4, [(0, 1), (1, 2), (0, 2), (3, 2)]) == [0, 1, 2, 1]
    assert layers(3, [(0, 1)]) == [0, 1, 1], "nobody knows where it belongs: not above the start"


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_tree_is_ordered_without_a_crossing(mirrored: bool) -> None:
    children = {0: [1, 2], 1: [3, 4], 2: [5, 6]}
    downs = [children.get(node, []) for node in range(7)]
    ups: list[list[int]] = [[], [0], [0], [1], [1], [2], [2]]
    rows = [[0], [2, 1], [6, 3, 5, 4] if mirrored else [3, 5, 4, 6]]
    assert crossings(rows, downs) > 0
    assert crossings(ordered(rows, ups, downs), downs) == 0
