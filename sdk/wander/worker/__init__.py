"""One environment in its own virtual environment and process, and the host's handle to it."""
