"""Number the sources, and list what was quoted from each.

In:  `questions`, and `notes`, one per question: what check_evidence.py wrote, or `{"error": ...}`.
Out: `evidence`: a source with number, name, title and quotations each; `evidence_text`, `gaps`. `_next`.
"""

from __future__ import annotations

import library
from evidence import text_of


def main() -> None:
    state = library.state()
    sources: dict[str, dict] = {}
    gaps: list[str] = []
    for question, note in zip(state["questions"], state["notes"], strict=True):
        if "error" in note:
            gaps.append(f"- {question} (it could not be researched: {' '.join(str(note['error']).split())[:160]})")
            continue
        if not note["evidence"]:
            gaps.append(f"- {question}")
        for item in note["evidence"]:
            source = sources.setdefault(item["source"], new(len(sources) + 1, item))
            quotation = {"quote": item["quote"], "says": item["says"], "question": question}
            if quotation not in source["quotes"]:
                source["quotes"].append(quotation)
    evidence = list(sources.values())
    library.finish(
        evidence=evidence,
        evidence_text=text_of(evidence),
        gaps="\n".join(["Questions to which no evidence was found:", *gaps]) if gaps else "",
        _next="vet" if evidence else "nothing_found",
    )


def new(number: int, item: dict) -> dict:
    name, title, checked = item["source"], item["title"], item["checked"]
    return {"number": number, "name": name, "title": title, "checked": checked, "trust": "", "why": "", "quotes": []}


if __name__ == "__main__":
    main()
