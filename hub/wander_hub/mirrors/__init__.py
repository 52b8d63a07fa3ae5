"""Follows environments of other hubs: what is new there comes through this hub's own gate."""
