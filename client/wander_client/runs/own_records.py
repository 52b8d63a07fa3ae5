"""Signed records of commands in run folders, so that only this user's own settings are applied.

A command saves its settings in the run's folder: endpoint, key variable, programs, workers and sandbox. A
folder from somebody else also contains such a record. Applying its settings could send the user's keys to its
author, or run programs that its author chose. So each record has an HMAC over its content, whose key never
leaves this machine. The settings of a record without a valid HMAC are shown, but never applied.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from wander.errors import RunError
from wander.evals.store import jsonl

from wander_client.errors import ClientError
from wander_client.settings import state_folder

COMMAND_FILE = "command.json"
"""File in the run's folder with the settings of the command, so that `--resume` is enough to continue."""
KEY_FILE = "records.key"
_KEY_BYTES = 32

Kept = TypeVar("Kept", bound=BaseModel)


@dataclass(frozen=True)
class KeptCommand(Generic[Kept]):
    """The command recorded in a folder."""

    command: Kept
    is_own: bool
    """Whether this user's key on this machine signed it."""


def write_command(path: Path, command: BaseModel) -> None:
    """Write the signed command into a run's folder."""
    jsonl.write_whole(path, signed_text(command))


@contextlib.contextmanager
def restore_if_refused(path: Path) -> Iterator[None]:
    """Restore the replaced command if the block fails because the run has other options."""
    try:
        before = jsonl.read_whole(path)
    except FileNotFoundError:
        before = None
    try:
        yield
    except RunError:
        if before is not None:
            jsonl.write_whole(path, before)
        raise


def signed_text(command: BaseModel) -> bytes:
    """Return the content that `write_command` writes; it is unsigned if no state folder can keep a key."""
    content = command.model_dump(mode="json", by_alias=True)
    key = _read_key(make=True)
    signature = None if key is None else _sign(key, type(command), content).decode()
    return json.dumps({"command": content, "signature": signature}, indent=1).encode() + b"\n"


def read_command(path: Path, kind: type[Kept]) -> KeptCommand[Kept]:
    """Return the command in a file, and whether this user wrote it.

    Raises `FileNotFoundError`, and `ClientError` for a file that cannot be read as such a command.
    """
    try:
        # The stricter parser of other records would reject paths of the user that are not valid UTF-8.
        text = jsonl.read_whole(path)
        jsonl.require_few_parts(text)
        stored = json.loads(text)
        content, signature = stored["command"], stored["signature"]
        command = kind.model_validate_json(json.dumps(content))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        fault = str(error) if isinstance(error, ValidationError) else None
        raise ClientError(f"`{path}` cannot be read", detail=fault, code="bad_record") from error
    key = _read_key()
    is_own = key is not None and hmac.compare_digest(_sign(key, kind, content), str(signature).encode())
    return KeptCommand(command, is_own)


def foreign_record(folder: Path, asks: Iterable[str], hint: str) -> ClientError:
    """Return the error for a record that this user did not write on this machine.

    `asks` contains the options in the record, one per line.
    """
    return ClientError(
        f"`{folder}` was not started by you on this machine, so the options in it are not used",
        detail="\n".join(["its options are:", *(f"  {line}" for line in asks)]),
        hint=hint,
        code="foreign_record",
    )


def _sign(key: bytes, kind: type[BaseModel], content: Any) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, f"{kind.__name__}\n{text}".encode(), hashlib.sha256).hexdigest().encode()


def _read_key(*, make: bool = False) -> bytes | None:
    """Return this user's key; None if it is missing. With `make`, a missing key is created if possible."""
    path = state_folder() / KEY_FILE
    with contextlib.suppress(OSError):
        if make and not path.exists():
            _make_key(path)
        key = path.read_bytes()
        return key if len(key) == _KEY_BYTES else None
    return None


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{KEY_FILE}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
        os.fsync(file.fileno())
    try:
        # If two processes create a key at the same time, the first key is used.
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink()
