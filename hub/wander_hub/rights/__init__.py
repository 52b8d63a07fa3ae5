"""Permissions: roles, tokens and invitations."""
