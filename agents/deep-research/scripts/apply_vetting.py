"""Leave out untrustworthy sources, and note how trustworthy the others are.

In:  `evidence`; `vetting`, empty if no model has judged them.
Out: `evidence`, `evidence_text`; `problem` if nothing is left. `_next`.
"""

from __future__ import annotations

import library
from evidence import text_of


def main() -> None:
    state = library.state()
    judged = {judgement["number"]: judgement for judgement in state["vetting"]}
    evidence = []
    for source in state["evidence"]:
        judgement = judged.get(source["number"], {"trust": "", "why": ""})
        if judgement["trust"] != "none":
            evidence.append({**source, "trust": judgement["trust"], "why": " ".join(judgement["why"].split())})
    if not evidence:
        library.finish(problem="None of the sources can be trusted.", _next="nothing_found")
        return
    library.finish(evidence=evidence, evidence_text=text_of(evidence), _next="synthesise")


if __name__ == "__main__":
    main()
