"""The terminal: how is text written for people and programs, and redrawn?"""
