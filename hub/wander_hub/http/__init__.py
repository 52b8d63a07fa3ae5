"""The request boundary: what every route shares."""
