"""Nodes: what do scripts, functions and searches do, and conditions and reducers of an agent?

Nodes with models are in `llm`, calls of tools in `tools`.
"""
