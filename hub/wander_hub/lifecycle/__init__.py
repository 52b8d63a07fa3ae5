"""Changes of published environments, versions and models: yank, deprecate, lock, rename, delete."""
