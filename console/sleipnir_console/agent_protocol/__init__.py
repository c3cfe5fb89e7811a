"""Agents as servers of A2A, the protocol between agents: /a2a/AGENT, with its card."""
