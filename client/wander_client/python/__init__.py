"""What `import wander` gives to scripts and notebooks: environments by name, runs, training, a hub."""
