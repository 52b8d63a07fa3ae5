"""Silences messages of the model libraries about themselves. Wander's own warnings are still shown."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

LIBRARIES = ("transformers", "trl", "accelerate", "datasets", "peft")

EXPECTED = (
    # TRL 1.16 still uses the old names of transformers' options.
    r".*gradient_checkpointing.* is deprecated.*",
    # accelerate 1.15 still uses PyTorch's old name.
    r".*`broadcast_buffers` is deprecated.*",
)
"""Warnings that do not help a user."""


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence log lines, progress bars and the expected warnings of the model libraries in a block.

    Downloads keep their progress bars on a terminal.
    """
    import transformers

    loggers = [logging.getLogger(name) for name in LIBRARIES]
    levels = [logger.level for logger in loggers]
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), _without_bars():
            for message in EXPECTED:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Hide every tqdm progress bar in the block.

    Setting TQDM_DISABLE does not help, because tqdm reads it when it is imported, usually long before this
    block.
    """
    from tqdm.std import tqdm  # type: ignore[import-untyped]

    original = tqdm.__init__

    def without_bar(self: Any, *args: Any, **kwargs: Any) -> None:
        downloads = type(self).__module__.startswith("huggingface_hub")
        if not (downloads and sys.stderr.isatty()):
            kwargs["disable"] = True
        original(self, *args, **kwargs)

    tqdm.__init__ = without_bar
    try:
        yield
    finally:
        tqdm.__init__ = original
