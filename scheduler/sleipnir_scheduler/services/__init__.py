"""What runs by itself: one loop per file, all alike.

`run_once` is safe to run twice at once; `loop.run_forever` waits and calls it.
"""
