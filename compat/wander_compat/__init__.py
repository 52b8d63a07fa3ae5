"""Other libraries' environments, run as ours."""
