"""Runs in the file formats of other tools, written and read without their packages."""
