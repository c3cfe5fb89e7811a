"""The tools of the agent demo, and what there is to know about Python tools.

Each function without a `_` in front is a tool. The model sees its name, its docstring and its parameters: the
annotations say what it may send, the `Args:` block says what they mean. What a function returns is the answer; an
exception is one too, so its message should say what would be right.
"""

from __future__ import annotations

import os
from typing import Literal

_FACTORS = {("km", "mi"): 0.621371, ("kg", "lb"): 2.204623, ("l", "gal"): 0.264172}

_ALWAYS = ["passport or identity card", "phone and charger", "toothbrush"]
_FOR = {
    "hiking": ["boots", "rain jacket", "map", "water bottle", "first-aid kit"],
    "swimming": ["swimsuit", "towel", "sun cream"],
    "business": ["suit", "laptop and charger", "business cards"],
}


# `float` and `int` become number and integer; a parameter with a default may be left out.
def split_bill(total: float, people: int, tip_percent: float = 0.0) -> dict:
    """Divide a bill so that everybody pays the same.

    Args:
        total: the amount on the bill
        people: how many share it
        tip_percent: the tip in percent of the total, by default none
    """
    if people < 1 or total < 0 or tip_percent < 0:
        raise ValueError("people must be 1 or more, total and tip_percent 0 or more")
    cents = round(total * (100 + tip_percent))
    share, left_over = divmod(cents, people)
    # A dict reaches the model as JSON. Variables of the agent are in the environment.
    return {
        "currency": os.environ.get("LLM_AGENT_VAR_CURRENCY", "EUR"),
        "with_tip": cents / 100,
        "each_pays": share / 100,
        "pay_one_cent_more": left_over,
    }


# `Literal` lists what the model may choose from.
def convert(value: float, unit: Literal["km", "mi", "kg", "lb", "l", "gal", "C", "F"]) -> str:
    """Convert a measure: kilometres and miles, kilograms and pounds, litres and gallons (US), Celsius and Fahrenheit.

    Args:
        value: the number to convert
        unit: its unit; the result is in the other unit of the pair
    """
    result, other = _converted(value, unit)
    return f"{value:g} {unit} = {round(result, 2):g} {other}"


# A `list` is an array; `| None` may be left out as well.
def packing_list(days: int, activities: list[str] | None = None, cold: bool = False) -> list:
    """Say what to pack for a journey.

    Args:
        days: how long it takes
        activities: any of hiking, swimming, business; by default none of them
        cold: whether it will be cold
    """
    if not 1 <= days <= 365:
        raise ValueError("days must be from 1 to 365")
    if unknown := sorted(set(activities or []) - set(_FOR)):
        raise ValueError(f"no list for {', '.join(unknown)}: activities are {', '.join(_FOR)}")
    things = [*_ALWAYS, *(thing for activity in dict.fromkeys(activities or []) for thing in _FOR[activity])]
    if cold:
        things += ["warm jacket", "gloves", "hat"]
    return [*things, f"clothes for {min(days, 7)} days" + (", and washing powder" if days > 7 else "")]


def _converted(value: float, unit: str) -> tuple[float, str]:
    """Hidden from the model by its `_`."""
    if unit == "C":
        return value * 9 / 5 + 32, "F"
    if unit == "F":
        return (value - 32) * 5 / 9, "C"
    for (metric, imperial), factor in _FACTORS.items():
        if unit == metric:
            return value * factor, imperial
        if unit == imperial:
            return value / factor, metric
    raise ValueError(f"unknown unit {unit!r}: use km, mi, kg, lb, l, gal, C or F")
