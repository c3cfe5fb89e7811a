"""Bring the findings of all files into one order, the worst first.

In:  `files`, and `reviews`, one per file: what check_findings.py wrote, or `{"error": ...}`.
Out: `findings`, `findings_text`, `counts`, `left_out` with the files that could not be reviewed. `_next`.
"""

from __future__ import annotations

from collections import Counter

import repository
from repository import plural

SEVERITIES = ("high", "medium", "low")


def main() -> None:
    state = repository.state()
    pairs = list(zip(state["files"], state["reviews"], strict=True))
    failed = [(file["path"], str(review["error"])) for file, review in pairs if "error" in review]
    if len(failed) == len(pairs):
        repository.finish(problem=failed[0][1], _next="not_reviewed")
        return
    findings = [
        {"path": review["path"], **finding}
        for _, review in pairs
        if "error" not in review
        for finding in review["findings"]
    ]
    findings.sort(key=lambda entry: (SEVERITIES.index(entry["severity"]), entry["path"], entry["line"]))
    count = Counter(finding["severity"] for finding in findings)
    parts = [f"{count[severity]} {severity}" for severity in SEVERITIES if count[severity]]
    severities = f": {', '.join(parts)}" if parts else ""
    repository.finish(
        findings=findings,
        findings_text="\n".join(line(finding) for finding in findings) or "The reviewers have found nothing.",
        counts=f"{plural(len(findings), 'finding')} in {plural(len(pairs) - len(failed), 'file')}{severities}.",
        left_out=[*state["left_out"], *(f"{path} ({reason(error)})" for path, error in failed)],
        _next="summarise",
    )


def line(finding: dict) -> str:
    place = f"{finding['path']}:{finding['line']}" if finding["line"] else finding["path"]
    return f"- [{finding['severity']}] {place}: {finding['text']}"


def reason(error: str) -> str:
    return f"not reviewed: {' '.join(error.split())[:160]}"


if __name__ == "__main__":
    main()
