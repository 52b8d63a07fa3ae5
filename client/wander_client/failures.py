"""Turns any exception into a `ClientError`: message, hint, stable code, exit status."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Collection
from typing import Any, TypeVar

from wander_client.errors import (
    ClientError,
    Interrupted,
    LoginRequired,
    NotFound,
    Unavailable,
    UsageError,
)
from wander_client.settings import state_folder

Model = TypeVar("Model")

_OS_HINTS = {
    errno.ENOSPC: ("disk_full", "free some space and run the command again; what was written before is kept"),
    errno.EDQUOT: ("disk_full", "free some of your quota and run the command again"),
    errno.EACCES: ("permission_denied", "check the owner and mode of that path"),
    errno.EPERM: ("permission_denied", "check the owner and mode of that path"),
    errno.EROFS: ("read_only", "choose a place that can be written"),
    errno.EADDRINUSE: ("port_taken", "choose another port, or stop what listens there"),
    errno.EEXIST: ("exists", "choose another place"),
    errno.EISDIR: ("is_a_folder", "pass a file"),
    errno.ENOTDIR: ("not_a_folder", "pass a folder"),
    errno.ELOOP: ("is_a_link", "pass the file itself"),
    errno.EFBIG: ("too_large", "pass a smaller file"),
    errno.ENAMETOOLONG: ("name_too_long", "choose a shorter name"),
    errno.ENXIO: ("not_a_file", "pass a plain file"),
}


def explain(error: BaseException, command: str = "wander") -> ClientError:
    """Return the error as the user shall see it."""
    if isinstance(error, ClientError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if (explained := _from_sdk(error)) is not None:
        return explained
    return explain_system(error) or _explain_unexpected(error)


def explain_system(error: BaseException) -> ClientError | None:
    """Return what the connection or the system refused as the user shall see it; None for any other error."""
    if "httpx" in sys.modules:
        import httpx

        if isinstance(error, httpx.HTTPError | httpx.InvalidURL | httpx.StreamError):
            what = error or type(error).__name__
            return Unavailable(f"the request failed: {what}", hint="try again in a moment")
    if isinstance(error, FileNotFoundError):
        return NotFound(
            f"`{error.filename}` does not exist", hint="check the spelling of the path", code="file_not_found"
        )
    if isinstance(error, OSError) and error.errno in _OS_HINTS:
        code, hint = _OS_HINTS[error.errno]
        where = f": `{error.filename}`" if error.filename else ""
        return ClientError(f"{(error.strerror or 'system error').lower()}{where}", hint=hint, code=code)
    return None


def _from_sdk(error: BaseException) -> ClientError | None:
    if "wander.errors" not in sys.modules:
        return None
    from wander import errors as sdk

    kinds: list[tuple[type[Exception], type[ClientError]]] = [
        (sdk.AuthenticationFailed, LoginRequired),
        (sdk.WorkerRefusedToken, LoginRequired),
        (sdk.WorkerUnreachable, Unavailable),
        (sdk.ModelError, Unavailable),
        (sdk.ModelNotFound, NotFound),
        (sdk.ArgumentsRefused, ClientError),  # a `ConfigError` of the environment, and no wrong usage here
        (sdk.ConfigError, UsageError),
        (sdk.WanderError, ClientError),
    ]
    for theirs, ours in kinds:
        if isinstance(error, theirs):
            hint = getattr(error, "hint", None)
            code = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
            return ours(str(error), hint=hint, code=code)
    return None


def _explain_unexpected(error: BaseException) -> ClientError:
    """Save the traceback for a report of the bug, where only this user reads it: it may hold secrets."""
    import secrets
    import traceback

    text = "".join(traceback.format_exception(error))
    folder = state_folder() / "crashes"
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
        hint = f"this is a bug in wander; the traceback is in `{path}` (or run again with `--debug`)"
    except OSError:
        hint = "this is a bug in wander; run again with `--debug` for the traceback"
    return ClientError(f"unexpected {type(error).__name__}: {error}", hint=hint, code="internal")


def validate(kind: type[Model], given: dict[str, Any], hint: str, options: Collection[str] = ()) -> Model:
    """Return a model of what was typed; raises `UsageError` with the first thing that is wrong.

    `options` names the fields that are options of the command line.
    """
    from pydantic import ValidationError
    from wander.types import first_fault

    try:
        return kind(**given)
    except ValidationError as error:
        place, said = first_fault(error)
        place = f"--{place}" if place in options else place
        raise UsageError(f"`{place}`: {said}" if place else said, hint=hint) from error
