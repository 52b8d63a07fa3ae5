"""Verification: the hub plays posted runs again and says what came out."""
