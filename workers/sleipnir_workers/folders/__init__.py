"""Folders: which files of an agent does a visit use, and in which directory does it work?"""
