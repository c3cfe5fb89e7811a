"""Knowledge bases: documents are loaded, split, embedded and stored by a builder, and searched by rag workers.

    sources → loading → chunking → embedder → loki_file (the agent's folder) → artefact (what is searched) → index_store

One file per step; build.py runs them in order.
"""
