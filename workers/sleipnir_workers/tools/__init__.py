"""Executing the tool calls of a model: one call, one process in the sandbox, one result for the model."""
