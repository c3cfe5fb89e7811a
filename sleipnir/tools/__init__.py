"""The tools of an agent, as its files declare them: what a model is told, and what a worker must know to run them.

Nothing here runs a tool (workers/sleipnir_workers/tools does), and nothing imports litellm, mcp or redis.
"""
