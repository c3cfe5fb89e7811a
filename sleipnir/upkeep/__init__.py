"""Upkeep: what can be removed, and how are runs archived before they expire?"""
