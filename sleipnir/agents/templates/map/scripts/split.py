"""In: `initial_prompt`, expenses, separated by semicolons or line breaks. Out: `lines`, a text for each."""

import json
import os
import re
from pathlib import Path


def main():
    # A large state comes in a file.
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    lines = [line.strip() for line in re.split("[;\n]", state["initial_prompt"])]
    print(json.dumps({"lines": [line for line in lines if line]}))


if __name__ == "__main__":
    main()
