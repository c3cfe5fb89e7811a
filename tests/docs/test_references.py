"""Pages that the code names."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

CODE = ("sleipnir", "scheduler", "workers", "inprocess", "ops")
_PAGE = re.compile(r"\bdocs/[\w-]+\.md\b")


def test_pages_that_the_code_names_exist() -> None:
    files = [file for folder in CODE for kind in ("py", "lua") for file in (ROOT / folder).rglob(f"*.{kind}")]
    named = {(page, str(file.relative_to(ROOT))) for file in files for page in _PAGE.findall(file.read_text())}
    assert named
    assert [f"{file} names {page}" for page, file in sorted(named) if not (ROOT / page).is_file()] == []
