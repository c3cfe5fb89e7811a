"""Schedules: when runs start by themselves.

times     the times at which a schedule fires: cron expressions, intervals and single times in a time zone
records   what is stored of a schedule, and what people see of it
firing    what a due schedule does: a pure decision

Nothing here uses Redis or reads a clock.
"""
