"""Files that environments write for tools and sandboxes."""

from __future__ import annotations

import tempfile


def write_temp_file(content: str, suffix: str = ".txt") -> str:
    """Write a text to a new temporary file, which stays until somebody removes it; returns its path."""
    with tempfile.NamedTemporaryFile("w", suffix=suffix, delete=False, encoding="utf-8") as file:
        file.write(content)
    return file.name
