"""The help command, and completion for shells."""
