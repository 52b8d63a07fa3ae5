"""Worker processes: start one, plain or in the sandbox."""
