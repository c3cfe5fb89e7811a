"""Count the words of a text.

In:  `initial_prompt`, the text that the run was started with.
Out: `words`, how many there are; `longest`, the first of the longest ones.
"""

import json
import os
import sys
from pathlib import Path


def main():
    # A large state comes in a file.
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    words = state["initial_prompt"].split()
    if not words:
        sys.exit("the text is empty")  # an exit code other than 0 is a failure; the last line of stderr says why
    print(json.dumps({"words": len(words), "longest": max(words, key=len)}))


if __name__ == "__main__":
    main()
