"""What the documentation says is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sleipnir.cli import front_page
from sleipnir.graph.model import NODE_TYPES, Branch, Graph, Limits, StateField
from sleipnir.graph.model import Settings as GraphSettings
from sleipnir.graph.shape import FIELDS
from sleipnir.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *(ROOT / folder / "README.md" for folder in ("agents", "ops", "scheduler", "workers")),
    *sorted(ROOT.glob("agents/*/README.md")),
]


def table_keys(text: str) -> set[str]:
    """Every `code` in the first column of a table."""
    return {key for cell in re.findall(r"^\| (.+?) \|", text, re.MULTILINE) for key in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_is_short_and_every_command_in_it_exists() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 150
    named = set(re.findall(r"(?:^|`|\$ )sleipnir ([a-z]+)", text, re.MULTILINE))
    assert named
    assert named <= set(front_page.COMMANDS)


def test_the_changelog_names_every_command() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in front_page.COMMANDS if f"`{name}`" not in text] == []


def test_operations_explains_every_setting_with_its_default_and_no_other() -> None:
    rows = re.findall(rf"^\| `({PREFIX}\w+)` \| (.+?) \|", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    documented = dict(rows)
    assert set(documented) == {PREFIX + name.upper() for name in Settings.names()}
    for name in Settings.names():
        default = getattr(Settings, name)
        if isinstance(default, int | float):
            assert documented[PREFIX + name.upper()] == f"{default:.0f}"


def test_the_graph_language_explains_every_node_type_and_field() -> None:
    text = (ROOT / "docs/graph-language.md").read_text()
    sections = {heading: body for heading, body in re.findall(r"^###? ([^\n]+)\n(.*?)(?=^##|\Z)", text, re.M | re.S)}
    common = table_keys(sections["What every node has"])
    for kind, node in NODE_TYPES.items():
        titles = {heading: heading.partition("(")[0].strip() for heading in sections}
        about = [name for name, title in titles.items() if title == kind] or [
            name for name, title in titles.items() if kind in re.findall(r"\w+", title)
        ]
        body = sections[about[0]]
        assert len(about) == 1, f"{kind}: {about}"
        own = FIELDS[node].keys() - common
        missing = [name for name in sorted(own) if f"`{name}`" not in body]
        assert missing == [], f"{kind} does not explain {missing}"


def test_the_graph_language_explains_every_key_outside_the_nodes() -> None:
    keys = table_keys((ROOT / "docs/graph-language.md").read_text())
    assert {
        key for model in (Graph, GraphSettings, Limits, StateField, Branch) for key in FIELDS[model]
    } - keys == set()


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[\[>=<; ]", requirement)[0] for requirement in wanted} - {"sleipnir"}
    text = (ROOT / "docs/dependencies.md").read_text()
    assert [name for name in sorted(names) if name not in text and not name.startswith("types-")] == []
