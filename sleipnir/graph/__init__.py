"""The graph language: YAML text in, an immutable `Graph` out, with every problem named by file, line and column."""
