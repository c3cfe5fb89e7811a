"""Who may do what over HTTP: users, their access roles, access tokens and logins; and the audit of what was changed.

It says nothing of who may do what with Redis: a holder of Redis' password may do everything.
"""
