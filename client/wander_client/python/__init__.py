"""The Python API of `import wander`: environments by name, runs, training, and a hub."""
