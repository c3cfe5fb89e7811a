"""The planner decides what happens next: values in, a Transition out.

Rules. This package does not use Redis, Celery or a clock: the time of the event is an argument. Only this package
implements routing, joins, reducers, visit caps, timeouts and the reaction to a lost worker. An event that is not legal
for the run changes nothing, because messages repeat.
"""
