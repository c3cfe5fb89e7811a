"""What does an instance count while it commits? `metrics` serves it to scrapes."""
