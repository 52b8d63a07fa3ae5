"""Creates folders atomically."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` if the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        new_folder = Path(work) / "new"
        new_folder.mkdir()
        yield new_folder
        if folder.exists():
            folder.rename(Path(work) / "old")
        new_folder.rename(folder)
