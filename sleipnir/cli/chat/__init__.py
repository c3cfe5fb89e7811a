"""Conversations: how does a person talk with an agent, and what is kept of it?"""
