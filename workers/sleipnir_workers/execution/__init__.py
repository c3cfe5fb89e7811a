"""Executions: what does an executor see of its visit, and which executor is for which node?"""
