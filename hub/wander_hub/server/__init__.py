"""Server and worker processes of a hub."""
