"""The request boundary: code that all routes share."""
