"""One machine: how does `sleipnir run` start everything by itself, and how does it end?"""
