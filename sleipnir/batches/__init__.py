"""Batches: what is stored of many runs that were submitted together, and where do their rows come from?"""
