"""Runs: the records of a run, its events, and its views for people.

The planner decides on these records, the store keeps them, clients show them.
"""
