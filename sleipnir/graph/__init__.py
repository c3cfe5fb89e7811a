"""The graph language: what can a graph say, and is this one right?

YAML text in, an immutable `Graph` out, with every problem named by file, line and column.
"""
