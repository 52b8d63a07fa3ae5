"""Build, publish, resolve and install environment packages."""
