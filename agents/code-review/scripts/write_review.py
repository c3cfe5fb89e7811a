"""Write the review in Markdown.

In:  `about`, `counts`, `findings`, `left_out`; `verdict` and `summary`, empty if the model did not sum up.
Out: `review`.
"""

from __future__ import annotations

from itertools import groupby

import repository


def main() -> None:
    state = repository.state()
    head = f"## Review: {state['verdict']}" if state["verdict"] else "## Review"
    parts = [head, state["summary"].strip(), f"{state['about']} {state['counts']}"]
    for severity, findings in groupby(state["findings"], key=lambda finding: finding["severity"]):
        parts.append(f"### {severity.capitalize()}")
        parts.append("\n".join(bullet(finding) for finding in findings))
    if state["left_out"]:
        parts.append("### Not reviewed")
        parts.append("\n".join(f"- {name}" for name in state["left_out"]))
    repository.finish(review="\n\n".join(part for part in parts if part))


def bullet(finding: dict) -> str:
    place = f"{finding['path']}:{finding['line']}" if finding["line"] else finding["path"]
    return f"- `{place}` {finding['text']}"


if __name__ == "__main__":
    main()
