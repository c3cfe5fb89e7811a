"""Commands for operators: how are the processes started, checked and cleaned up after?"""
