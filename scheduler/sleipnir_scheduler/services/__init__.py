"""The background services: one loop per file, all of one form.

`run_once` is safe to run concurrently; `loop.run_forever` waits and calls it.
"""
