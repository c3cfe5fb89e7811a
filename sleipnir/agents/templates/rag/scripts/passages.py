"""Write what was found for the model, each passage below the name of its file.

In:  `hits`, the passages, best first: objects with `source`, `lines`, `score` and `text`.
Out: `passages`.
"""

import json
import os
from pathlib import Path


def main():
    # A large state comes in a file.
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    passages = [f"[{Path(hit['source']).name}]\n{hit['text'].strip()}" for hit in state["hits"]]
    print(json.dumps({"passages": "\n\n".join(passages) or "Nothing was found."}))


if __name__ == "__main__":
    main()
