"""The tools of an agent, as its files declare them: their descriptions for models, and what a worker needs to run them.

Nothing here runs a tool (workers/sleipnir_workers/tools does), and nothing imports litellm, mcp or redis.
"""
