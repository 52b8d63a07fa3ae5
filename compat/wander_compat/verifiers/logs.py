"""Logging of environments. Hosts write it to the environment's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wander_compat.verifiers.messages.conversion import as_messages, field_of, text_of

LOGGER_NAME = "verifiers"


def setup_logging(
    level: str | None = "INFO", log_format: str | None = None, date_format: str | None = None, **_: Any
) -> None:
    """Make the library's loggers write to standard error."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel((level or "INFO").upper())
    if not logger.handlers:
        handler = logging.StreamHandler()
        form = log_format or "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
        handler.setFormatter(logging.Formatter(form, date_format))
        logger.addHandler(handler)
    logger.propagate = False


@contextmanager
def log_level(level: str | int) -> Iterator[None]:
    """Change the level of the library's loggers in a block."""
    logger = logging.getLogger(LOGGER_NAME)
    before = logger.level
    logger.setLevel(level.upper() if isinstance(level, str) else level)
    try:
        yield
    finally:
        logger.setLevel(before)


def quiet_verifiers() -> Any:
    """Silence the library's loggers in a block, except for warnings."""
    return log_level("WARNING")


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Silence the logs and progress bars of `datasets` in a block."""
    from datasets import disable_progress_bars, enable_progress_bars
    from datasets.utils import logging as datasets_logging

    before = datasets_logging.get_verbosity()
    datasets_logging.set_verbosity_warning()
    disable_progress_bars()
    try:
        yield
    finally:
        datasets_logging.set_verbosity(before)
        enable_progress_bars()


def print_time(time_s: float) -> str:
    """Format seconds with the two largest units: `1d 2h`, `3h 4m`, `5m 6s`, `7s`, `800ms`."""
    if time_s < 1:
        return f"{time_s * 1000:.0f}ms"
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    first = next(position for position, (_, size) in enumerate(units) if time_s >= size)
    parts: list[str] = []
    for name, size in units[first : first + 2]:
        count, time_s = divmod(time_s, size)
        parts.append(f"{count:.0f}{name}" if count or not parts else "")
    return " ".join(filter(None, parts))


def print_prompt_completions_sample(
    prompts: Sequence[Any], completions: Sequence[Any], errors: Sequence[Any], rewards: Sequence[float],
    step: int, num_samples: int = 1, **_: Any,
) -> None:  # fmt: skip
    """Print some rollouts."""
    logger = logging.getLogger(LOGGER_NAME)
    for prompt, completion, reward in list(zip(prompts, completions, rewards, strict=False))[:num_samples]:
        messages = [*as_messages(prompt), *as_messages(completion)]
        shown = [
            f"{field_of(message, 'role')}: {text_of(field_of(message, 'content'))}" for message in messages
        ]
        logger.info("step %s, reward %s\n%s", step, reward, "\n".join(shown))
