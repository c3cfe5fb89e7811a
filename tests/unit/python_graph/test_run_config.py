"""What of a configuration and a context travels with a run, and what is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from sleipnir.errors import UsageError
from sleipnir.python_graph.run_config import MOST_BYTES, refuse_size, refuse_unfit, stored_config, thread_id_of


def test_a_configuration_is_stored_without_what_is_not_given() -> None:
    given = {"configurable": {"who": "ann"}, "tags": ("a",), "metadata": None, "recursion_limit": 3, "callbacks": None}
    assert stored_config(given) == {"configurable": {"who": "ann"}, "tags": ["a"], "recursion_limit": 3}


def test_the_thread_of_a_configuration_is_found_before_that_is_checked() -> None:
    assert thread_id_of({"configurable": {"thread_id": "ann"}}) == "ann"
    unchecked: list[Any] = [None, 3, [], {}, {"configurable": None}, {"configurable": 3}, {"configurable": {}}]
    assert {thread_id_of(config) for config in unchecked} == {None}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"recursion_limit": 0}, "recursion_limit must be at least 1, a whole number, not 0"),
        ({"max_concurrency": True}, "max_concurrency must be at least 1, a whole number, not True"),
        ({"recursion_limt": 3}, "config key 'recursion_limt' does not travel with a run. Did you mean"),
        ({"callbacks": [print]}, "config key 'callbacks' does not travel with a run. The keys are: configurable"),
        ({"configurable": ["who"]}, "config key 'configurable' must be a mapping, not list"),
        ({"tags": "one"}, "config key 'tags' must be a list of texts, not 'one'"),
        ({"configurable": {"who": print}}, "as JSON: key 'configurable.who' is a builtin_function_or_method"),
        ({"metadata": {"share": math.nan}}, "as JSON: key 'metadata.share' is NaN"),
        ({"configurable": {"openai_api_key": "x"}}, "the name 'configurable.openai_api_key' marks a secret"),
        ({"metadata": {"users": [{"password": "x"}]}}, "the name 'metadata.users[0].password' marks a secret"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_travel_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        stored_config(config)


def test_only_texts_under_secret_like_names_are_secrets() -> None:
    refuse_unfit("context", {"max_token": 3, "sort_key": None, "password": "", "tokens": "three"})


def test_a_configuration_and_a_context_are_small_together() -> None:
    half = {"configurable": {"text": "x" * (MOST_BYTES // 2)}}
    refuse_size(half, None)
    with pytest.raises(UsageError, match="at most 65,536 are possible"):
        refuse_size(half, half)
