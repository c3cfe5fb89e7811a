"""Agents as models of OpenAI's chat completions: /v1/chat/completions and /v1/models."""
