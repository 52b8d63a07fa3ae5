"""The Wander hub: registry, package index, run records and leaderboards in one server."""

from importlib.metadata import version

__version__ = version("wander-hub")
