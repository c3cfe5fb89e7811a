"""Calls of models: the llm node, the turns of a conversation, embedding and reranking.

`transport` is how a model is called, `litellm_compat` the only module that imports litellm, `dialogue` one visit's
part of a conversation. No module here depends on Redis, Celery or the planner.
"""
