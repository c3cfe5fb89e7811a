"""What runs by itself: one loop per file, all alike. `run_once` is safe to run twice at once; `run_forever` waits and calls it."""
