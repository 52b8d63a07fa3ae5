"""What helps to type commands."""
