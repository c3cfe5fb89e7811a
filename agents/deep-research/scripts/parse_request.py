"""Take the topic, and see what sources there are.

In:  `initial_prompt`; LLM_AGENT_VAR_SOURCES.
Out: `topic`, `overview`; or `problem`. `_next` is `plan`, `ask_topic` or `no_sources`.
"""

from __future__ import annotations

import library

SHOWN = 60


def main() -> None:
    problems: list[str] = []
    documents = library.documents(problems)
    if not documents:
        reason = "; ".join(problems) or "no text files are there"
        library.finish(problem=f"{reason}. Name folders, files or addresses: --var sources=docs", _next="no_sources")
        return
    lines = [f"- {document.name}: {document.title}" for document in documents[:SHOWN]]
    if len(documents) > SHOWN:
        lines.append(f"- and {len(documents) - SHOWN:,} more")
    lines += [f"(Not to be had: {problem}.)" for problem in problems]
    topic = str(library.state().get("initial_prompt", "")).strip()
    library.finish(topic=topic, overview="\n".join(["The sources:", *lines]), _next="plan" if topic else "ask_topic")


if __name__ == "__main__":
    main()
