"""The client: what can a user do from Python?

`from sleipnir import Client` is the way in.
"""
