"""Commands that evaluate, post and compare runs."""
