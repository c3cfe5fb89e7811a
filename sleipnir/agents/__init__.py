"""Agents: which agents are there, what belongs to one, and how does it get onto a machine?"""
