"""What happens next in each run, and who makes it happen? `planner` decides, `services` act."""
