"""Quotas: limits on an owner's stored bytes, versions and runs."""
