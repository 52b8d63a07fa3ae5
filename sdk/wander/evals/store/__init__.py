"""Run folders: the manifest, the rollouts, and files that grow line by line."""
