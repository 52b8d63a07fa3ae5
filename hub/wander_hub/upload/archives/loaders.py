"""Finds a module-level `load_environment`, the habit of packages without an entry point."""

from __future__ import annotations

import ast
import threading

from wander_hub.upload.archives.entry_points import LOADER

_MODULE_BYTES = 512 * 1024
_ALL_BYTES = 2 * 1024 * 1024
"""A syntax tree takes a hundred times its source, so what is parsed of one file is bounded."""
_PARSING = threading.Lock()
"""CPython 3.11 counts the depth of all threads' parses together and fails when they meet (gh-106905)."""


class LoaderSearch:
    """Looks through an archive's top-level modules until one of them defines the function."""

    def __init__(self) -> None:
        self.found = False
        self._left = _ALL_BYTES

    def wants(self, size: int) -> bool:
        """Tell whether a module of this size would still be looked into."""
        return not self.found and size <= min(_MODULE_BYTES, self._left)

    def look(self, source: bytes) -> None:
        """Look into one module."""
        if LOADER.encode() in source:
            self._left -= len(source)
            self.found = defines_loader(source)


def defines_loader(source: bytes) -> bool:
    """Tell whether a module binds `load_environment` at its top level; it is parsed, never run."""
    try:
        with _PARSING:
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(LOADER in _bound_names(statement) for statement in tree.body)


def _bound_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    if isinstance(statement, ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    if isinstance(statement, ast.Assign):
        return {one.id for one in statement.targets if isinstance(one, ast.Name)}
    return set()
