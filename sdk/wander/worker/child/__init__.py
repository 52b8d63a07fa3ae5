"""The worker's side, which serves one environment to the host."""
