"""Server and worker processes of a hub: start, serve, end."""
