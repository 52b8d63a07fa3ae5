"""Webhooks: an outbox that is written in the transaction of an event, and the worker that delivers from it.

`outbox.tell` adds a delivery for each subscribed webhook. A worker creates jobs for deliveries, one for each
attempt, and sends signed messages to public addresses only.
"""
