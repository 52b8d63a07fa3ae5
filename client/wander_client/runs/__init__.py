"""Find, list, compare and read runs."""
