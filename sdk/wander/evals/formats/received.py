"""Reads rows of other libraries' results. Errors are a `RunError` with file and line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wander.errors import RunError
from wander.evals.store.jsonl import numbered_lines, open_record, parse_object, read_whole
from wander.types import first_fault

_MOST_BYTES, _LARGEST_OBJECT = 4 << 30, 16 << 20


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, object) of a file of JSON lines. An incomplete last line is skipped.

    Raises: `RunError` for any other line that is not an object.
    """
    with open_record(path) as file:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            raise RunError(f"`{path}` has more than {_MOST_BYTES >> 30} GiB")
        try:
            for number, line in numbered_lines(file, path):
                try:
                    value = parse_object(line.decode("utf-8", "replace").encode())
                except ValueError as error:
                    if not line.endswith(b"\n"):
                        return
                    raise RunError(f"line {number} of `{path}` is not an object: {error}") from error
                yield number, value
        except OverflowError as error:
            raise RunError(str(error)) from None


@contextmanager
def blame_line(path: Path, number: int) -> Iterator[None]:
    """Convert the exceptions of a row with an unexpected shape to a `RunError` that names its line."""
    try:
        yield
    except ValidationError as error:
        fault = ": ".join(first_fault(error))
        raise RunError(f"line {number} of `{path}` is not a rollout: {fault}") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise RunError(f"line {number} of `{path}` is not a rollout: {error}") from error


def json_object(path: Path) -> dict[str, Any]:
    """Return the object in a file, or an empty one if the file is missing. Raises `RunError`."""
    try:
        return parse_object(read_whole(path, _LARGEST_OBJECT))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RunError(f"`{path}` cannot be read: {error}") from error
