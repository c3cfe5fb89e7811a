"""The process that sends webhooks: `sleipnir webhooks send`. Any number may run.

request   one HTTP request to a receiver, to the address that was checked
sender    its rounds: queue what was noted, try what is due
main      the process
"""
