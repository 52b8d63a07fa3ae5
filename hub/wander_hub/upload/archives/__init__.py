"""Checks of archives, wheels and source archives alike, member by member."""
