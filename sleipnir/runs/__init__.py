"""Runs: what is a run, what happened to it, and what do people see of it?

The planner decides on these records, the store keeps them, clients show them.
"""
