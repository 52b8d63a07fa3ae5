"""Environments and versions after their publication: yank, deprecate, lock, rename, delete."""
