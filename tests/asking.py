"""An agent that waits for a person between two visits of a function: while Redis or the broker changes under it."""

from __future__ import annotations

ASK = """
name: ask
start: count
nodes:
  count: {type: function, call: "f.py:f", next: sure}
  sure: {type: input, question: "Sure?", next: again, state_updates: {said: "{{input}}"}}
  again: {type: function, call: "f.py:f", next: done}
  done: {type: end, output: "{{said}} {{n}}"}
"""
COUNT = "def f(state):\n    return {'n': state.get('n', 0) + 1}\n"
