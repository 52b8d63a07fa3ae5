"""Commands that find and install environments."""
