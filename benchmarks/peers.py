"""What Wander is measured beside: libraries and servers, each in a virtual environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def peer_environment(requirement: str) -> Path | None:
    """Return a virtual environment under the user's cache folder that has a requirement, made once.

    None, with a message, where it cannot be made.
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
        said = str(getattr(error, "stderr", None) or error).strip()[-500:]
        print(f"left out: {requirement} cannot be installed here: {said}", file=sys.stderr)
        return None
    (folder / "complete").touch()
    return folder
