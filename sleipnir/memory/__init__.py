"""What does a run look like that is kept in this process, without Redis?

values.py has its values, store.py its records.
Nothing here is durable. tests/store holds it against the store in Redis.
"""
