"""What is in Redis, and what changes it in one step? Only this package talks to Redis.

`keys` names every key, `lua/` holds every script, `store` opens all of it.
"""
