"""What `torchrun` and `accelerate launch` tell each process that they start."""

from __future__ import annotations

import os


def is_launched() -> bool:
    """Return whether this process was started as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_beside_main() -> bool:
    """Return whether this process is one of several, and not the first."""
    return is_launched() and int(os.environ.get("RANK", "0")) > 0
