"""Rows of foreign results, read one by one; what cannot be read raises `RunError` with its file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from wander.errors import RunError
from wander.types import Usage, first_fault


def total_usage(prompt_tokens: Any, completion_tokens: Any) -> Usage:
    """Return token counts, however they were written."""
    return Usage(prompt_tokens=int(prompt_tokens or 0), completion_tokens=int(completion_tokens or 0))


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, object) of a file of JSON lines; a last line cut short is left out.

    Raises `RunError` for any other line that is no object.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = file.read().split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return
            raise RunError(f"line {number} of `{path}` is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise RunError(f"line {number} of `{path}` is no object")
        yield number, value


@contextmanager
def blame_line(path: Path, number: int) -> Iterator[None]:
    """Turn what a row of an unexpected shape raises into a `RunError` that names its line."""
    try:
        yield
    except ValidationError as error:
        said = ": ".join(first_fault(error))
        raise RunError(f"line {number} of `{path}` makes no rollout: {said}") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise RunError(f"line {number} of `{path}` makes no rollout: {error}") from error


def json_object(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty where there is no such file. Raises `RunError`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(f"`{path}` cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise RunError(f"`{path}` holds no object")
    return value
