"""Turn the diagnosis into a text that a person can approve.

In:  `summary`, `findings`, and the diagnosis: `cause`, `confidence`, `evidence`, `next_steps`, `diagnosed_by`.
Out: `report`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def main() -> None:
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    parts = [
        f"Likely cause: {state['cause']}",
        f"Confidence:   {state['confidence']}, by {state.get('diagnosed_by', 'a model')}",
        "",
        "What points to it:",
        *(f"  - {line}" for line in state["evidence"]),
        "",
        "What to do:",
        *(f"  {number}. {step}" for number, step in enumerate(state["next_steps"], 1)),
        "",
        *other_trouble(state),
        f"Read: {state['summary']}",
    ]
    print(json.dumps({"report": "\n".join(parts)}, ensure_ascii=False))


def other_trouble(state: dict) -> list[str]:
    """Findings that the evidence does not quote: they may need someone too."""
    quoted = "\n".join(state["evidence"])
    others = [finding for finding in state["findings"] if finding["message"] not in quoted]
    if not others:
        return []
    return ["Also in the log:", *(f"  - {line_for(finding)}" for finding in others), ""]


def line_for(finding: dict) -> str:
    times = f" ({finding['count']} times)" if finding["count"] > 1 else ""
    where = f", at {finding['where']}" if finding["where"] else ""
    return f"{finding['first']} {finding['source']}: {finding['message']}{times}{where}".strip()


if __name__ == "__main__":
    main()
