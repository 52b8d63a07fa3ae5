"""Adapts classic environments to Wander, and the host's model to the classic API."""
