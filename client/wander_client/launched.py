"""`wander train` as one of several processes, started by `torchrun` or `accelerate launch`.

The first process tells and writes; the others compute and are quiet, but for an error of their own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.errors import UsageError

if TYPE_CHECKING:
    from wander.train.config import GRPOSettings


def is_launched() -> bool:
    """Return whether this process is one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_beside_main() -> bool:
    """Return whether this process is one of several, and not the first."""
    return is_launched() and int(os.environ.get("RANK", "0")) > 0


def told_elsewhere(error: BaseException) -> bool:
    """Return whether an error is another process's, which the first one tells."""
    return is_beside_main() and getattr(error, "of_another_process", False)


def agreed_folder(folder: Path, settings: GRPOSettings) -> Path:
    """Return the first process's folder: each made a name of its own, from its own clock."""
    if not is_launched():
        return folder
    from wander.train.processes import current_world

    return current_world(settings.model.device).from_main(lambda: folder.resolve())


def require_alone(what: str) -> None:
    """Raise `UsageError` for what one process does."""
    if is_launched():
        raise UsageError(
            f"{what} runs in one process", hint="run it without `torchrun` or `accelerate launch`"
        )
