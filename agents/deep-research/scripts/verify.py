"""Check the citations of a draft, and add the list of sources.

In:  `draft`, `title`, `evidence`, `rounds`, and `report`, the one before.
Out: `report` and `note` for the person who is asked; or `objections`, for another draft. `_next`.
"""

from __future__ import annotations

import re

import library

MAX_ROUNDS = 2
CITATION = re.compile(r"\[(\d+(?:\s*,\s*\d+)*)\]")
SHORT = 60  # characters of a paragraph that may go without a source: "Two causes are named:"


def main() -> None:
    state = library.state()
    draft = state["draft"].strip()
    if not draft or draft.startswith("LLM node failed: "):
        keep(state, draft or "The model's answer was empty.")
        return
    wrong = mistakes(draft, {source["number"] for source in state["evidence"]})
    if wrong and state["rounds"] < MAX_ROUNDS:
        mistakes_text = "\n".join(f"- {mistake}" for mistake in wrong)
        order = f"Its citations are not right. Mend that and write all of it again:\n{mistakes_text}"
        objections = f"Your last draft was:\n\n{draft}\n\n{order}"
        library.finish(objections=objections, rounds=state["rounds"] + 1, _next="synthesise")
        return
    note = f"(Its citations are still not right: {'; '.join(wrong)}.) " if wrong else ""
    library.finish(report=with_sources(state["title"], draft, state["evidence"]), note=note, _next="approve")


def keep(state: dict, failure: str) -> None:
    """Continue without a new draft. A report that a person has already seen is kept."""
    if state["report"]:
        library.finish(note=f"(It was not changed. {failure}) ", _next="approve")
    else:
        library.finish(problem=failure, _next="failed")


def mistakes(draft: str, numbers: set[int]) -> list[str]:
    unknown = sorted(cited(draft) - numbers)
    wrong = [f"[{number}] is no source" for number in unknown]
    for paragraph in re.split(r"\n\s*\n", draft):
        text = " ".join(line for line in paragraph.split("\n") if not line.lstrip().startswith("#")).strip()
        if len(text) > SHORT and not CITATION.search(text):
            wrong.append(f'this paragraph cites nothing: "{text[:80]}…"')
    return wrong


def cited(text: str) -> set[int]:
    return {int(number) for group in CITATION.findall(text) for number in group.split(",")}


def with_sources(title: str, draft: str, evidence: list[dict]) -> str:
    used = cited(draft)
    lines = [line(source) for source in evidence if source["number"] in used]
    return "\n\n".join([f"# {title}", draft, "## Sources", "\n".join(lines) or "None."])


def line(source: dict) -> str:
    title = f"{source['title']}, " if source["title"] != source["name"] else ""
    trust = f"trust: {source['trust']}" if source["trust"] else "not vetted"
    checked = "quotations checked" if source["checked"] else "quotations not checked"
    return f"- [{source['number']}] {title}{source['name']} ({trust}; {checked})"


if __name__ == "__main__":
    main()
