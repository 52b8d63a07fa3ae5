"""Boxes: isolated file systems in which commands and whole programs run, for environments with a shell."""
