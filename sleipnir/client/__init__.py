"""The client: what can a user do from Python?

Use `from sleipnir import Client`.
"""
