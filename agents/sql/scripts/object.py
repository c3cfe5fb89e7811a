"""Turn what a person answered instead of `run` or `drop` into advice for the model.

In:  `sql`, and `advice`, the answer.
Out: `advice`, and `attempts` from zero: a person may object as often as they like.
"""

from __future__ import annotations

import database

state = database.state()
advice = f"\nYour last statement was:\n{state['sql']}\nIt was not run. The person says: {state['advice']}"
database.finish(advice=advice, attempts=0)
