"""Run folders: manifest, rollouts, files that grow line by line."""
