"""Take the review that a model has changed on request, or keep the current one.

In:  `revision`: the changed review, or why there is none.
Out: `review`, or else `note`, which the next question begins with.
"""

from __future__ import annotations

import repository

revision = repository.state()["revision"].strip()
if not revision or revision.startswith("LLM node failed: "):
    repository.finish(note=f"(It was not changed. {revision}) ")
else:
    repository.finish(review=revision, note="")
