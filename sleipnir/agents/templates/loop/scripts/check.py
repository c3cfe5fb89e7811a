"""In: `slogan`. Out: `is_short`; `advice` for the next try; `tries`, 1, which the graph adds to those before."""

import json
import os
from pathlib import Path

MOST_CHARACTERS = 40


def main():
    # A large state comes in a file.
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    slogan = state["slogan"]
    advice = f"This one has {len(slogan)} characters, which is too long: {slogan}"
    print(json.dumps({"is_short": len(slogan) <= MOST_CHARACTERS, "advice": advice, "tries": 1}))


if __name__ == "__main__":
    main()
