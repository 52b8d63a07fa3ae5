"""Checks on archives: wheels and source archives, member by member."""
