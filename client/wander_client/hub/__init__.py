"""The client for the hub's HTTP API."""
