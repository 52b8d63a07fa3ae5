"""Leaderboards: comparable runs, with ranks as ranges."""
