"""Webhooks: an outbox that is written with the change it tells of, and what delivers from there.

`outbox.tell` adds a delivery for each webhook that wants an event, in the transaction of the event. A worker
turns deliveries into jobs, one for each attempt, and sends them, signed, to public addresses alone.
"""
