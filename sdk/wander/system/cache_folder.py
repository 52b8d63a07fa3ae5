"""The folder for downloads that can be made again: models and agent programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Return `WANDER_CACHE_DIR`, or the platform's cache folder."""
    given = os.environ.get("WANDER_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "wander"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wander"
