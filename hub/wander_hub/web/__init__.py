"""Server-rendered pages; every one works without a script."""
