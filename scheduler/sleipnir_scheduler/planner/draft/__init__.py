"""What one event changes in a run, so far: which part of it is kept where? Bookkeeping alone; nothing here decides."""
