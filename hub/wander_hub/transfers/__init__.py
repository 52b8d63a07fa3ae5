"""Transfers: uploads of versions, models and runs in parts, with shared tables, steps, routes and limits."""
