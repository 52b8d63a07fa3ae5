"""The `wander` command and the hub's client."""

__version__ = "0.1.0"
