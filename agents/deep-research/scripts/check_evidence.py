"""Drop quotations that are not in the source they name.

In:  `question`, and what the model found: `answer`, `evidence`.
Out: `found`: the question, the answer, the quotations that were kept, and how many were not.

Addresses outside the variable `sources` come from tools that were added to this agent. This script cannot check them:
it keeps and marks such a quotation.
"""

from __future__ import annotations

import library


def main() -> None:
    state = library.state()
    sources = library.documents()
    kept, dropped = [], 0
    for item in state["evidence"]:
        document = library.named(sources, item["source"])
        if document is not None and library.stands_in(item["quote"], document.text):
            kept.append({**item, "source": document.name, "title": document.title, "checked": True})
        elif document is None and item["source"].startswith(("http://", "https://")):
            kept.append({**item, "title": item["source"], "checked": False})
        else:
            dropped += 1
    entry = {"question": state["question"], "answer": state["answer"], "evidence": kept, "dropped": dropped}
    library.finish(found=entry)


if __name__ == "__main__":
    main()
