"""How the rollouts of a step come about: which examples, on which environments, by which engine."""
