"""The code-review agent, run to its ends on real git repositories."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sleipnir.testing import Reply, Rule
from tests.shipped import Lab

SHOP = "def price(cents):\n    return cents\n\n\ndef total(prices):\n    return sum(prices)\n"


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Main has a commit; the branch has one more, a change that is not committed, and files that are not to be read."""
    folder = tmp_path / "shop"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "shop.py").write_text(SHOP)
    (folder / "old.py").write_text("print('old')\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Begin")
    git(folder, "switch", "-qc", "feature")
    (folder / "shop.py").write_text(SHOP.replace("return cents", "return cents / 0"))
    (folder / "old.py").unlink()
    (folder / "logo.png").write_bytes(b"\x89PNG\0\0")
    (folder / "uv.lock").write_text("locked\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Change")
    (folder / "new file.py").write_text("import os\n")
    return folder


def found(*findings: tuple[str, int, str]) -> str:
    listed = [{"severity": severity, "line": line, "text": text} for severity, line, text in findings]
    return json.dumps({"found": listed})


SUMMARY = json.dumps({"verdict": "request changes", "summary": "It divides by zero."})
RULES = [
    Rule(found(("low", 99, "No test."), ("high", 2, "Divides by\nzero.")), match=r"File: shop\.py"),
    Rule(found(("medium", 1, "Unused import.")), match=r"File: new file\.py"),
    Rule(SUMMARY, match="compared with"),
]
REVIEW = """\
## Review: request changes

It divides by zero.

2 files of shop, compared with main; 3 files left out. 3 findings in 2 files: 1 high, 1 medium, 1 low.

### High

- `shop.py:2` Divides by zero.

### Medium

- `new file.py:1` Unused import.

### Low

- `shop.py` No test.

### Not reviewed

- logo.png (not text)
- old.py (deleted)
- uv.lock (generated)"""


def test_each_changed_file_is_reviewed_and_the_review_is_posted_once_approved(lab: Lab, repository: Path) -> None:
    ended = lab.run("code-review", "Is it safe?", rules=RULES, answers=[("approve", "post")], here=repository)
    assert ended.output == REVIEW
    prompts = {request.prompt.splitlines()[0]: request.prompt for request in ended.requests}
    assert set(prompts) == {
        "File: new file.py (not added to git yet)",
        "File: shop.py (changed)",
        "2 files of shop, compared with main; 3 files left out.",
    }
    shop = prompts["File: shop.py (changed)"]
    assert "The author asks: Is it safe?" in shop
    assert "      -    return cents\n    2 +    return cents / 0\n    3  \n" in shop
    assert "    1 +import os" in prompts["File: new file.py (not added to git yet)"]
    assert "- [high] shop.py:2: Divides by zero." in ended.requests[-1].prompt


def test_the_review_is_edited_as_often_as_a_person_wants(lab: Lab, repository: Path) -> None:
    rules = [
        Rule("## Short\n\nIt divides by zero.", match="What shall be different: shorter"),
        Rule(Reply(status=400, error="too long"), match="What shall be different: politer"),
        *RULES,
    ]
    answers = [("approve", "shorter"), ("approve", "edit"), ("ask_what_to_edit", "politer"), ("approve", "post")]
    ended = lab.run("code-review", rules=rules, answers=answers, here=repository)
    assert ended.questions[0].startswith(REVIEW)
    assert ended.questions[1].startswith("## Short\n\nIt divides by zero.\n\nPost this review?")
    assert "(It was not changed. LLM node failed: " in ended.questions[3]
    assert ended.output == "## Short\n\nIt divides by zero."


def test_a_file_that_cannot_be_reviewed_is_named_and_findings_are_kept_without_a_summary(
    lab: Lab, repository: Path
) -> None:
    rules = [RULES[0], Rule(Reply(status=400, error="no"), match="new file|compared with")]
    ended = lab.run("code-review", rules=rules, answers=[("approve", "drop")], here=repository, base="main")
    assert ended.output == "The review was dropped. 2 findings in 1 file: 1 high, 1 low."
    assert ended.questions[0].startswith("## Review\n\n2 files of shop")
    assert "- new file.py (not reviewed: " in ended.questions[0]


def test_only_so_many_files_are_reviewed_and_none_without_a_model(lab: Lab, repository: Path) -> None:
    ended = lab.run("code-review", rules=[Rule(Reply(status=400))], here=repository, max_files="1")
    assert ended.output.startswith("No file could be reviewed. ")
    assert len(ended.requests) == 1
    assert "shop.py (more than 1 files)" in ended.state["left_out"]


def test_on_the_main_branch_its_last_commit_is_reviewed_unless_there_is_more(lab: Lab, repository: Path) -> None:
    (repository / "new file.py").unlink()
    git(repository, "switch", "-q", "main")
    first = lab.run("code-review", rules=[Rule(found()), Rule(SUMMARY)], answers=[("approve", "drop")], here=repository)
    assert first.state["about"] == "2 files of shop, compared with an empty repository."
    (repository / "shop.py").write_text("")
    (repository / "sub").mkdir()
    (repository / "sub" / "-a*.py").write_text("one\n")
    second = lab.run("code-review", rules=[Rule(found())], answers=[("approve", "drop")], here=repository / "sub")
    assert second.state["about"] == "2 files of shop, compared with the last commit."
    assert [file["path"] for file in second.state["files"]] == ["shop.py", "sub/-a*.py"]


def test_what_is_no_repository_or_has_no_changes_ends_with_the_reason(lab: Lab, repository: Path) -> None:
    nowhere = lab.run("code-review", here=repository.parent)
    assert nowhere.output.startswith("No changes were found. In ") and "not a git repository" in nowhere.output
    no_base = lab.run("code-review", here=repository, base="--output=x")
    assert no_base.output.endswith("there is no branch or commit '--output=x'")
    no_folder = lab.run("code-review", here=repository, repository="missing")
    assert no_folder.output.endswith("missing is no folder.")
    (repository / "new file.py").unlink()
    nothing = lab.run("code-review", here=repository, base="HEAD")
    assert nothing.output == "Nothing to review. 0 files of shop, compared with HEAD."
    assert nothing.requests == []
