"""Clients: whatever answers an environment's model calls. See `wander.clients.base` for the port."""
