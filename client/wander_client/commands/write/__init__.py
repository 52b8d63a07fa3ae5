"""Commands that write, check and publish environments."""
