"""What happens next, and nothing else: values in, a Transition out.

Rules. This package knows no Redis, no Celery and no clock: time is the event's own time, an argument. It is the one
place that knows routing, joins, reducers, visit caps, timeouts and what a lost worker means. An event that is not legal
for the run changes nothing: messages repeat.
"""
