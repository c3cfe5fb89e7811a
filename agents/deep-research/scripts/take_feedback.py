"""Turn what a person answered instead of `accept` or `discard` into an order for the next draft.

In:  `draft`, `feedback`.
Out: `objections`; `rounds` from zero: a person may object as often as they like.
"""

from __future__ import annotations

import library

state = library.state()
order = f"The reader says: {state['feedback']}\nWrite all of it again, changed so."
library.finish(objections=f"Your last draft was:\n\n{state['draft']}\n\n{order}", rounds=0)
