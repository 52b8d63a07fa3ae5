"""The `wander-hub` command."""
