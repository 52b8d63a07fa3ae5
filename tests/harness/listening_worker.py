"""`wander worker` in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def worker(folder: Path, *words: str) -> Iterator[str]:
    """Serve a folder on a free port and yield the address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wander_client", "worker", str(folder), "--listen", "127.0.0.1:0", *words],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "WANDER_CACHE_DIR": str(folder / "cache")},
    )  # fmt: skip
    assert process.stderr is not None
    try:
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("listening on "):
                yield line.split()[-1]
                break
        else:
            raise AssertionError(said)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
