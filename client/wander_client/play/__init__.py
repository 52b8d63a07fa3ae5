"""Play an environment by hand, as the model or as the opponent."""
