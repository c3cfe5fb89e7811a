"""Processes: how are commands and helper processes started, so that none outlives its visit or its worker?"""
