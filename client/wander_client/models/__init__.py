"""Models by their names, and the servers and processes that run them."""
