"""How does a graph run in this process? With the planner and the executors of the fleet, over a store in memory.

Nothing is durable: when the process ends, its runs are gone.
"""
