"""Ways for other trainers to play an environment."""
