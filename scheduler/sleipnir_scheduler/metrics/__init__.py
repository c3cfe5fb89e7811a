"""What an instance counts, what it finds in Redis when asked, and the endpoint that says both
(docs/metrics.md)."""
