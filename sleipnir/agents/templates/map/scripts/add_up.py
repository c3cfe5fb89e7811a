"""In: `lines`, and `entries`, what was read of each line or `{"error": ...}`. Out: `total` and `not_read`, as texts."""

import json
import os
from pathlib import Path


def main():
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    cents = sum(entry["cents"] for entry in state["entries"] if "error" not in entry)
    failed = [line for line, entry in zip(state["lines"], state["entries"], strict=True) if "error" in entry]
    print(json.dumps({"total": f"{cents // 100}.{cents % 100:02}", "not_read": ", ".join(failed) or "nothing"}))


if __name__ == "__main__":
    main()
