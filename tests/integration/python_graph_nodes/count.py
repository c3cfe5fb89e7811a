import json
import os

print(json.dumps({"count": len(json.loads(os.environ["GRAPH_STATE"])["topic"])}))
