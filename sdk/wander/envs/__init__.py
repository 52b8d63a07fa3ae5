"""Kinds of environment."""
