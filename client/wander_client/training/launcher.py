"""`wander train` as one of several processes, started by `torchrun` or `accelerate launch`.

The first process tells and writes; the others compute and are quiet, but for an error of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wander.train.distributed import current_world, is_launched, join_world

from wander_client.errors import UsageError

if TYPE_CHECKING:
    from wander.train.config import GRPOSettings


def is_told_elsewhere() -> bool:
    """Return whether the first process tells of the failure that ends this one, once it has."""
    return join_world().outlast_main()


def agree_on_folder(folder: Path, settings: GRPOSettings) -> Path:
    """Return the first process's folder: each made a name of its own, from its own clock."""
    if not is_launched():
        return folder
    return current_world(settings.model.device).from_main(lambda: folder.resolve())


def require_alone(what: str) -> None:
    """Raise `UsageError` for what one process runs: `what` begins the sentence."""
    if is_launched():
        raise UsageError(
            f"{what} needs a single process",
            hint="run it without `torchrun` or `accelerate launch`; several processes share one run of GRPO",
        )
