"""Upkeep: what can go, and what is kept of runs before they expire?"""
