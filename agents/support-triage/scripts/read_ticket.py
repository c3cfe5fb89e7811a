"""Take the ticket: the text of the prompt, or the file that it names.

In:  `initial_prompt`.
Out: `ticket`, or `problem` if there is none. `_next` is `classify`, `ask_ticket` or `no_ticket`.

A file is searched in the directory of the caller, then in this agent's folder. Only one line without spaces can name
one, because the author of a ticket must not choose files to read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

MAX_TICKET = 20_000  # characters
SUFFIXES = (".txt", ".md", ".eml")


def main() -> None:
    state = json.loads(os.environ.get("GRAPH_STATE") or Path(os.environ["GRAPH_STATE_FILE"]).read_text("utf-8"))
    text = str(state.get("initial_prompt", "")).strip()
    if text.endswith(SUFFIXES) and len(text.split()) == 1:
        file = find(text)
        if file is None:
            finish(problem=f"{text} does not exist here or in the agent's folder.", _next="no_ticket")
            return
        text = file.read_text("utf-8", errors="replace").strip()
        if not text or "\0" in text:
            finish(problem=f"{file.name} is empty or not a text file.", _next="no_ticket")
            return
    if len(text) > MAX_TICKET:
        text = f"{text[:MAX_TICKET]}\n(The rest of the ticket was cut.)"
    finish(ticket=text, _next="classify" if text else "ask_ticket")


def finish(**output: object) -> None:
    """A script speaks once: one JSON object on stdout."""
    print(json.dumps(output, ensure_ascii=False))


def find(name: str) -> Path | None:
    folders = [os.environ.get("GRAPH_CALLER_DIR"), os.environ.get("LLM_AGENT_DATA_DIR") or "."]
    places = [Path(folder, os.path.expanduser(name)) for folder in folders if folder]
    return next((place for place in places if place.is_file()), None)


if __name__ == "__main__":
    main()
