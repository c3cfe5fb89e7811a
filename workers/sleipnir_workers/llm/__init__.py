"""Conversations with models: the llm node, and the parts that a longer conversation is made of.

`provider` asks a model once and is the only module that imports litellm; `session` is one visit's share of a
conversation. Nothing here knows Redis, Celery or the planner.
"""
