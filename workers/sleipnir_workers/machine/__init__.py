"""The machine: what does it have for visits (settings, secrets, variables), and can it run them?"""
