"""The routes below /api/v1, one module for each kind of thing. Each is thin: it reads a request, calls the client, and
returns what that does."""
