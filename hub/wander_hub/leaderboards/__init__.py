"""Leaderboards: runs that may be compared, with ranks as ranges."""
