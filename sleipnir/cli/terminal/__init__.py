"""The terminal: how is text written to people and programs, and drawn again?"""
