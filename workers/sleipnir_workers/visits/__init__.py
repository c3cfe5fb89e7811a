"""Visits: how is one claimed, kept while it runs, and its result delivered?"""
