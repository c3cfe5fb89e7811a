"""Name the likely cause by fixed rules: the fallback for when no model answers.

In:  `findings`, worst kind first, as read_log.py wrote them; `model_error`, why there is no model's answer.
Out: `cause`, `confidence`, `evidence` and `next_steps`, the same keys that the model is asked for.

The rule of thumb: a full memory or disk explains crashes, a crash explains lost connections, and a lost
connection explains most of the rest. So the worst kind is the cause, and what it explains is evidence.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

EXPLAINS = {
    "memory": {"memory", "crash"},
    "disk": {"disk", "crash"},
    "crash": {"crash", "restart", "connection", "timeout"},
    "restart": {"restart", "connection", "timeout"},
    "connection": {"connection", "timeout"},
}

RULES = {
    "memory": (
        "A process ran out of memory.",
        "high",
        [
            "Find what grew: compare memory over time with what ran at {first}.",
            "Give the process more memory, or bound what it keeps.",
            "Restart what was killed, and check that no work was lost with it.",
        ],
    ),
    "redis memory": (
        "Redis has reached maxmemory and refuses every write.",
        "high",
        [
            "Find what fills it: redis-cli info memory; redis-cli --bigkeys; look for keys without a TTL.",
            "Make room: give cached keys a TTL, or move the cache to a Redis of its own. A queue must keep noeviction.",
            "Raise maxmemory if the data is wanted, and alarm at 80 %.",
            "Restart the processes that stopped; look for work that was taken from a queue and never finished.",
        ],
    ),
    "disk": (
        "A disk is full.",
        "high",
        [
            "See which: df -h; then du -xh --max-depth=2 on the full one.",
            "Free space, and rotate or cap what filled it.",
            "Restart what stopped, and check files that were being written for damage.",
        ],
    ),
    "crash": (
        "A process died of an error it could not handle.",
        "medium",
        ["Read the message and the lines above it.", "Restart the process, and see whether it dies at the same place."],
    ),
    "restart": (
        "A server was killed or crashed, and was started again.",
        "medium",
        [
            "Find who stopped it: dmesg | grep -i kill; the supervisor's log; the deployment history at {first}.",
            "Check that it came back with its data.",
        ],
    ),
    "connection": (
        "A service could not be reached.",
        "medium",
        ["Check that it runs and listens on that address.", "Check the network and the firewall between the two."],
    ),
    "access": (
        "Access was refused: a password, a key or a file's permissions are wrong.",
        "medium",
        ["Check the credentials and the owner of the files named above.", "See what changed before {first}."],
    ),
    "timeout": (
        "Something answered too slowly.",
        "low",
        ["See what it waited for, and how loaded that was at {first}."],
    ),
    "exception": (
        "A program has a bug, or was given data it does not expect.",
        "medium",
        ["Look at {where}, and at the data it was given.", "Decide whether to refuse such data earlier."],
    ),
    "error": (
        "Errors were logged whose cause the rules do not know.",
        "low",
        ["Read the messages above, and the log around {first}."],
    ),
}


def main() -> None:
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    findings = state["findings"]
    worst = findings[0]
    explained = EXPLAINS.get(worst["kind"], {worst["kind"]})
    cause, confidence, steps = RULES[rule_for(worst)]
    evidence = [finding for finding in findings if finding["kind"] in explained]
    result = {
        "cause": cause,
        "confidence": confidence,
        "evidence": [quote(finding) for finding in evidence],
        "next_steps": [
            step.format(first=worst["first"] or "that time", where=worst["where"] or "it") for step in steps
        ],
        "diagnosed_by": f"fixed rules ({why_no_model(state)})",
    }
    print(json.dumps(result, ensure_ascii=False))


def rule_for(finding: dict) -> str:
    text = finding["message"] + finding["detail"]
    return "redis memory" if finding["kind"] == "memory" and "maxmemory" in text else finding["kind"]


def quote(finding: dict) -> str:
    """One line a person can check against the log."""
    times = f" ({finding['count']} times)" if finding["count"] > 1 else ""
    end = "  <- this one stopped the process" if finding["fatal"] else ""
    return f"{finding['first']} {finding['source']}: {finding['message']}{times}{end}".strip()


def why_no_model(state: dict) -> str:
    """What the llm node said when it failed: its first line."""
    reason = str(state.get("model_error") or "no model").strip().partition("\n")[0].removeprefix("LLM node failed: ")
    return "no model is configured" if reason.startswith("no model") else reason[:160]


if __name__ == "__main__":
    main()
