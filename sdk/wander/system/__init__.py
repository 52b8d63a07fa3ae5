"""The operating system: what child processes inherit, and files that somebody else may have made."""
