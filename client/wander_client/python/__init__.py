"""The calls of programs and notebooks: what the commands do, as functions."""
