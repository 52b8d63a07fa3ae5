"""Peers to compare Wander with: libraries and servers, each in its own virtual environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def peer_environment(requirement: str) -> Path | None:
    """Return a virtual environment in the user's cache folder with a requirement, and create it if needed.

    Prints a message and returns None if it cannot be created.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "wander" / "benchmarks" / requirement.replace("==", "-")
    if (folder / "complete").exists():
        return folder
    beside = Path(sys.executable).with_name("uv")
    uv, python = str(beside) if beside.exists() else "uv", str(folder / "bin" / "python")
    print(f"installing {requirement} into {folder} (once)", file=sys.stderr)
    try:
        for command in (
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", python, requirement],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    except (OSError, subprocess.SubprocessError) as error:
        message = str(getattr(error, "stderr", None) or error).strip()[-500:]
        print(f"left out: {requirement} cannot be installed here: {message}", file=sys.stderr)
        return None
    (folder / "complete").touch()
    return folder
