"""The agent demo: the tools of the tutorial do what they say, and say what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.tools.folder import agent_tools
from tests.agents.in_process import AGENTS, Tools


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    return Tools("demo", tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"total": 96.5, "people": 3}, (96.5, 32.16, 2)),
        ({"total": 100, "people": 4, "tip_percent": 10}, (110.0, 27.5, 0)),
        ({"total": 0, "people": 1}, (0.0, 0.0, 0)),
        ({"total": 0.1 + 0.2, "people": 1}, (0.3, 0.3, 0)),
    ],
)
def test_a_bill_is_divided_to_the_cent(demo: Tools, arguments: dict[str, Any], expected: tuple[float, ...]) -> None:
    shared = demo("split_bill", **arguments)
    assert shared.pop("currency") == "EUR"
    assert tuple(shared.values()) == expected
    assert round(shared["each_pays"] * arguments["people"] + shared["pay_one_cent_more"] / 100, 2) == expected[0]


def test_a_bill_is_in_the_currency_of_the_variable(demo: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_AGENT_VAR_CURRENCY", "SEK")
    assert demo("split_bill", total=10, people=2)["currency"] == "SEK"


@pytest.mark.parametrize("arguments", [{"total": 1, "people": 0}, {"total": -1, "people": 1}])
def test_a_bill_that_cannot_be_divided_is_explained(demo: Tools, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="people must be 1 or more"):
        demo("split_bill", **arguments)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (26.2, "mi", "26.2 mi = 42.16 km"),
        (10, "km", "10 km = 6.21 mi"),
        (90, "F", "90 F = 32.22 C"),
        (-40, "C", "-40 C = -40 F"),
        (1, "kg", "1 kg = 2.2 lb"),
        (1, "gal", "1 gal = 3.79 l"),
    ],
)
def test_measures_are_converted(demo: Tools, value: float, unit: str, text: str) -> None:
    assert demo("convert", value=value, unit=unit) == text


def test_a_unit_that_is_not_known_is_explained(demo: Tools) -> None:
    with pytest.raises(ValueError, match="unknown unit 'stone': use km, mi,"):
        demo("convert", value=1, unit="stone")


def test_a_packing_list_is_made_of_what_is_asked_for(demo: Tools) -> None:
    short = demo("packing_list", days=2)
    assert short[-1] == "clothes for 2 days"
    long = demo("packing_list", days=20, activities=["swimming", "swimming"], cold=True)
    assert long == [
        *short[:-1],
        *("swimsuit", "towel", "sun cream"),
        *("warm jacket", "gloves", "hat"),
        "clothes for 7 days, and washing powder",
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"days": 0}, "days must be from 1 to 365"), ({"days": 1, "activities": ["golf"]}, "no list for golf: ")],
)
def test_a_journey_that_makes_no_sense_is_explained(demo: Tools, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        demo("packing_list", **arguments)


def test_the_tutorial_shows_what_the_annotations_become() -> None:
    bill, measure, packing = agent_tools(AGENTS / "demo")
    assert bill.parameters["properties"]["people"] == {"type": "integer", "description": "how many share it"}
    assert bill.parameters["required"] == ["total", "people"]
    assert measure.parameters["properties"]["unit"]["enum"] == ["km", "mi", "kg", "lb", "l", "gal", "C", "F"]
    assert packing.parameters["properties"]["activities"]["items"] == {"type": "string"}
    assert packing.parameters["required"] == ["days"]
