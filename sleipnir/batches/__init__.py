"""Batches: what is kept of many runs that were submitted together, and where do their rows come from?"""
