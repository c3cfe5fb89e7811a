"""Commands on batches: how are many runs of one agent submitted, watched and collected?"""
