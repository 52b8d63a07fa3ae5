"""Uploads: a pipeline of small named checks, then storing the files, then committing the rows."""
