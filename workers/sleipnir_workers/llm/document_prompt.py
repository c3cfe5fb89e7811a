"""The prompt of an agent with documents (spec 8.7): the user's text with the search results for it.

Rules. Without results the prompt is the user's text. The session keeps only that text; each turn searches again.
The template is that of config.yaml (`rag_template`), else ours. All its placeholders are replaced in one pass, so that
inserted text keeps its placeholders.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

from sleipnir.graph.template import as_text
from sleipnir.graph.tools import FOUND_CONTEXT, FOUND_SOURCES
from sleipnir_workers.execution.execution import Execution

_PARTS = re.compile("__CONTEXT__|__SOURCES__|__INPUT__")


def with_documents(prompt: str, execution: Execution, template: str | None = None) -> str:
    """The user's text with the search results in the visit's state. `template` None: ours."""
    context = as_text(execution.state.get(FOUND_CONTEXT) or "")
    if execution.graph.loop is None or not context:
        return prompt
    sources = json.loads(as_text(execution.state.get(FOUND_SOURCES) or "[]"))
    parts = {"__CONTEXT__": context, "__SOURCES__": "\n".join(f"- {each}" for each in sources), "__INPUT__": prompt}
    return _PARTS.sub(lambda match: parts[match[0]], template or _default_template())


@functools.cache
def _default_template() -> str:
    return Path(__file__).with_name("injected").joinpath("documents.md").read_text(encoding="utf-8").strip()
