"""Convert exceptions to `ClientError`s with a message, a hint, a stable code and an exit status."""

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
    errno.ENOSPC: (
        "disk_full",
        "free some space and run the command again; files that were already written are kept",
    ),
    errno.EDQUOT: ("disk_full", "free some of your quota and run the command again"),
    errno.EACCES: ("permission_denied", "check the owner and the mode of this path"),
    errno.EPERM: ("permission_denied", "check the owner and the mode of this path"),
    errno.EROFS: ("read_only", "choose a writable folder"),
    errno.EADDRINUSE: ("port_taken", "choose another port, or stop the program that uses this port"),
    errno.EEXIST: ("exists", "choose another path"),
    errno.EISDIR: ("is_a_folder", "pass a file"),
    errno.ENOTDIR: ("not_a_folder", "pass a folder"),
    errno.ELOOP: ("is_a_link", "pass the file itself"),
    errno.EFBIG: ("too_large", "pass a smaller file"),
    errno.ENAMETOOLONG: ("name_too_long", "choose a shorter name"),
    errno.ENXIO: ("not_a_file", "pass a regular file"),
}


def explain(error: BaseException, command: str = "wander") -> ClientError:
    """Convert any exception to the error that the user sees."""
    if isinstance(error, ClientError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if (explained := _from_sdk(error)) is not None:
        return explained
    return explain_system(error) or _explain_unexpected(error)


def explain_system(error: BaseException) -> ClientError | None:
    """Convert an error of the network or the operating system, or return None for other errors."""
    if "httpx" in sys.modules:
        import httpx

        if isinstance(error, httpx.HTTPError | httpx.InvalidURL | httpx.StreamError):
            reason = error or type(error).__name__
            return Unavailable(f"the request failed: {reason}", hint="try again in a moment")
    if isinstance(error, FileNotFoundError):
        return NotFound(
            f"`{error.filename}` does not exist", hint="check the spelling of the path", code="file_not_found"
        )
    if isinstance(error, OSError) and error.errno in _OS_HINTS:
        from wander.types import start_lower

        code, hint = _OS_HINTS[error.errno]
        path = f": `{error.filename}`" if error.filename else ""
        return ClientError(f"{start_lower(error.strerror or 'system error')}{path}", hint=hint, code=code)
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
        (sdk.ArgumentsRefused, ClientError),  # a `ConfigError`, but not the user's mistake
        (sdk.ConfigError, UsageError),
        (sdk.WanderError, ClientError),
    ]
    for sdk_error, client_error in kinds:
        if isinstance(error, sdk_error):
            hint = getattr(error, "hint", None)
            code = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
            return client_error(str(error), hint=hint, code=code)
    return None


def _explain_unexpected(error: BaseException) -> ClientError:
    """Save the traceback for a bug report, in a file that only this user can read: it may contain secrets."""
    import secrets
    import traceback

    text = "".join(traceback.format_exception(error))
    folder = state_folder() / "crashes"
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
        hint = f"this is a bug in Wander; the traceback is in `{path}` (or run again with `--debug`)"
    except OSError:
        hint = "this is a bug in Wander; run again with `--debug` for the traceback"
    return ClientError(f"unexpected {type(error).__name__}: {error}", hint=hint, code="internal")


def validate(kind: type[Model], values: dict[str, Any], hint: str, options: Collection[str] = ()) -> Model:
    """Validate input from the command line. Raises `UsageError` for the first invalid field.

    `options` lists the fields that are options of the command line.
    """
    from pydantic import ValidationError
    from wander.types import first_fault

    try:
        return kind(**values)
    except ValidationError as error:
        field, problem = first_fault(error)
        field = f"--{field}" if field in options else field
        raise UsageError(f"`{field}`: {problem}" if field else problem, hint=hint) from error
