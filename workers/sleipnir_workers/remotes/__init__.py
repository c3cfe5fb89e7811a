"""The client of A2A: tasks of agents of other deployments, for the nodes of remote agents."""
