"""In: `name`. Out: `greeting`."""

import json
import os
from pathlib import Path

state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
print(json.dumps({"greeting": f"Hello, {state['name'].strip()}!"}))
