"""Knowledge bases of rag nodes and of agents with documents: their names, build orders, and pins in runs.

The workers build and search them (sleipnir_workers/knowledge): nothing here imports numpy, a loader or a model
library.

A base is the file `<node-id>.yaml` in the agent's folder (`rag.yaml` for a config.yaml agent), in Loki's format: the
chunks of its documents and their vectors. Its SHA-256 is the base's digest, and names the index that workers search.
"""
