"""Llm nodes with tools: what do a turn, a call, an agent that a model starts, and a question of a model mean?"""
