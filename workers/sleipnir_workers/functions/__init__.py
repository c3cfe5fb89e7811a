"""Functions: how is Python code of an agent loaded, called and interrupted?"""
