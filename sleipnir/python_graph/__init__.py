"""How is a graph written in Python, and run in this process? state_graph.py has the builder, compiled.py what it makes.

Importing it loads neither Redis, Celery nor pydantic: a graph is translated when it is compiled.
"""
