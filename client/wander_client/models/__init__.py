"""What a model's name means, and the servers and processes that answer for it."""
