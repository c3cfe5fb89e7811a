"""Webhooks: which addresses get a signed request when something happens, what it says, and when it is tried again.

records     what is stored of a webhook and of its deliveries
occasions   what a webhook can be about, and the text of a delivery
signatures  keys, secrets and signatures
retries     when a delivery is tried again: a pure decision
addresses   where a delivery may go
hooks       the other direction: what requests of other programs to us do
proofs      how such a request proves who has made it

Nothing here uses Redis or reads a clock.
"""
