"""The host's side: environments that run in worker processes, here or on other machines."""
