"""Connections to workers on other machines, and the detection of machines that are gone."""
