"""Build projects by their own backends, in the sandbox or with the user's rights."""
