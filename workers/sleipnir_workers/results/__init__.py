"""Results: what may a node write, and what becomes of what its body returned?"""
