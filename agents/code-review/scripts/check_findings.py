"""Keep what can be true of the findings for one file.

In:  `file`, `lines`, and `found`, what the model reported.
Out: `file_review`: the path and its findings. A line that the file does not have becomes 0.
"""

from __future__ import annotations

import repository

state = repository.state()
findings: list[dict] = []
for finding in state["found"]:
    text = " ".join(finding["text"].split())
    line = finding["line"] if finding["line"] <= state["lines"] else 0
    kept = {"severity": finding["severity"], "line": line, "text": text}
    if text and kept not in findings:
        findings.append(kept)
repository.finish(file_review={"path": state["file"]["path"], "findings": findings})
