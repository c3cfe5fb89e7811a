"""What does a scrape get? Values read from Redis, the counters, and the endpoint that serves both (docs/metrics.md)."""
