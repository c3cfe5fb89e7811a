"""What an agent is asked when it has documents (spec 8.7): the user's words, and what was found for them.

Rules. Nothing found: the words alone. The session keeps the words alone too: what was found for them is found anew.
The template is the one of config.yaml (`rag_template`), else the one here; its parts are put in at once, so that none
is looked for in what another has brought.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

from sleipnir.graph.template import as_text
from sleipnir.graph.tools import FOUND_CONTEXT, FOUND_SOURCES
from sleipnir_workers.execution import Execution

_PARTS = re.compile("__CONTEXT__|__SOURCES__|__INPUT__")


def with_documents(prompt: str, execution: Execution, template: str | None = None) -> str:
    """The user's words with what the visit's state says was found for them. `template` None: the one here."""
    context = as_text(execution.state.get(FOUND_CONTEXT) or "")
    if execution.graph.loop is None or not context:
        return prompt
    sources = json.loads(as_text(execution.state.get(FOUND_SOURCES) or "[]"))
    parts = {"__CONTEXT__": context, "__SOURCES__": "\n".join(f"- {each}" for each in sources), "__INPUT__": prompt}
    return _PARTS.sub(lambda found: parts[found[0]], template or _ours())


@functools.cache
def _ours() -> str:
    return Path(__file__).with_name("injected").joinpath("documents.md").read_text(encoding="utf-8").strip()
