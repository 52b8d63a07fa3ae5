"""The documentation as pages under `/docs`, from the Markdown of `docs/` that the hub's wheel carries."""
