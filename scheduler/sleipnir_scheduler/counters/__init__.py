"""What does an instance count while it commits? `metrics` shows it to those who scrape."""
