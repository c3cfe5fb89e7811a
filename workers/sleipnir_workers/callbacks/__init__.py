"""How are functions called that an agent, or the deployment, runs around nodes and around calls of models and tools?"""
