"""The machine on which the pages are followed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.reader import Machine


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine")) as running:
        yield running
