"""The options that submissions share: each is a keyword of all of them, and nothing else is."""

from __future__ import annotations

import inspect

import pytest

from sleipnir import Client, RunOptions
from sleipnir.client.options import refuse_unknown


@pytest.mark.parametrize("method", [Client.submit, Client.batch])
def test_a_submission_takes_all_options_as_keywords_and_none_of_them_twice(method: object) -> None:
    assert callable(method)
    parameters = inspect.signature(method).parameters
    assert parameters["options"].annotation == "Unpack[RunOptions]"
    assert RunOptions.__annotations__.keys().isdisjoint(parameters)
    refuse_unknown(dict.fromkeys(RunOptions.__annotations__))


def test_a_keyword_that_is_no_option_is_refused() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'varables'; the options of runs are variables, "):
        refuse_unknown({"varables": {}})


def test_each_option_is_described_where_it_is_declared() -> None:
    described = [line.split()[0] for line in (RunOptions.__doc__ or "").splitlines() if line[:5].strip()]
    assert [name for name in described if name in RunOptions.__annotations__] == list(RunOptions.__annotations__)
