"""The worker's side: serve one environment to the host."""
