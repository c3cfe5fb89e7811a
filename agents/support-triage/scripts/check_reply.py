"""Sign a reply, and say whether a person has to look at it before it is sent, and why.

In:  `reply`, `used`, `is_complete`, and what is known of the ticket; `note`, which is only a failure to revise;
     LLM_AGENT_VAR_SIGNATURE.
Out: `reply`, `used`, `needs_person`, `reasons`, `triage`, `note`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

FAILED = "LLM node failed: "


def main() -> None:
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    used = [name for name in dict.fromkeys(state["used"]) if name in state["articles"]]
    reasons = reasons_for_a_person(state, used)
    made_from = f"from {', '.join(used)}" if used else "from no article"
    failure = state["note"].startswith(FAILED)
    result = {
        "reply": signed(state["reply"], os.environ.get("LLM_AGENT_VAR_SIGNATURE", "").strip()),
        "used": used,
        "needs_person": bool(reasons),
        "reasons": f"A person should look at it: {', '.join(reasons)}." if reasons else "",
        "triage": f"{state['category']}, {state['urgency']}, {state['sentiment']}, {state['language']}; {made_from}",
        "note": f"(It was not changed. {state['note']}) " if failure else "",
    }
    print(json.dumps(result, ensure_ascii=False))


def reasons_for_a_person(state: dict, used: list[str]) -> list[str]:
    reasons = []
    if state["urgency"] in ("high", "critical"):
        reasons.append(f"it is {state['urgency']}")
    if state["sentiment"] == "angry":
        reasons.append("the customer is angry")
    if not state["is_complete"]:
        reasons.append("the articles do not answer it")
    elif not used:
        reasons.append("no article stands behind the answer")
    return reasons


def signed(reply: str, signature: str) -> str:
    reply = reply.strip()
    return reply if not signature or reply.endswith(signature) else f"{reply}\n\n{signature}"


if __name__ == "__main__":
    main()
