"""The HTTP API: everything that a client can do, for other programs, within the role of the caller.

Rules. It uses `sleipnir.client` alone, over AsyncClient, and talks to no Redis itself. Workers and schedulers import
nothing of it. Each route declares the permission that it needs (permissions.py). Every error is a problem document with
a type of problems.py. No answer holds more in memory than a page of it.
"""
