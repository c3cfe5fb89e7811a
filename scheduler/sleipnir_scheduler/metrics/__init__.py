"""What does a scrape get? What is found in Redis when it is asked, the counters, and the endpoint that says both
(docs/metrics.md)."""
