"""Commands on webhooks: which other programs hear of what happens?"""
