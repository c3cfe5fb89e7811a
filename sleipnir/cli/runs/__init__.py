"""Commands on runs: how is one started, followed, shown, answered and steered?"""
