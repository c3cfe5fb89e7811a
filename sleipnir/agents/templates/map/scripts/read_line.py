"""In: `line`, such as `coffee 3.20`. Out: `entry`, an object with `what` and `cents`."""

import json
import os
import re
import sys
from pathlib import Path


def main():
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    match = re.fullmatch(r"(.+) (\d+)(?:\.(\d\d))?", state["line"])
    if match is None:
        sys.exit("there is no amount at the end")
    what, whole, cents = match.groups(default="0")
    print(json.dumps({"entry": {"what": what, "cents": int(whole) * 100 + int(cents)}}))


if __name__ == "__main__":
    main()
