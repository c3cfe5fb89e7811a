"""Models: which ones are configured here, and how often may they be called?"""
