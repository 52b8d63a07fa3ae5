"""Checks of wheels and source archives, member by member."""
