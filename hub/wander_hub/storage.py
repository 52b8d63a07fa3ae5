"""Object storage: distribution files, rollouts and artifacts, each stored under the SHA-256 of its content.

An object is written before the row that refers to it, so a crash can only leave an unreferenced object.
Writing the same content twice is harmless.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shlex
import stat
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, ObjectStore, S3Store, from_url

from wander_hub.settings import DATABASE, Settings

if TYPE_CHECKING:
    from obstore import WritableFile
    from obstore.store import RetryConfig

logger = logging.getLogger("wander_hub")

CHUNK = 1024 * 1024
IN_MEMORY = 4 * 1024 * 1024
"""Size in bytes above which assembled files are kept on disk instead of in memory."""
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
_RETRIES: RetryConfig = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
"""Retries of requests to the object store. A client is waiting, and obstore's default is to retry for three
minutes."""
PRIVATE = 0o700
"""Mode of a folder that only the hub's user may access."""
_KEY = re.compile(r"sha256/([0-9a-f]{2})/([0-9a-f]{62})")


_OWN_NAMES = frozenset({DATABASE, "hub.lock", "objects", "home", "public"})
"""Names in a data folder. A hub with PostgreSQL may have only some of them."""


class ForeignFolder(Exception):
    """The data folder contains files that are not a hub's; `hint` suggests what to do."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(f"`{folder}` is not empty and is not the data folder of a hub: it contains `{name}`")
        self.hint = f"choose another folder, such as `--data {shlex.quote(str(folder / 'wander-hub-data'))}`"


def make_data_folder(settings: Settings) -> None:
    """Make the data folder, accessible only to the hub's user, and an empty database file that not even nginx
    may read.

    If nginx sends files from the folder, the group of the hub's user gets read access. Raises `ForeignFolder`
    for a folder with files of something else.
    """
    _require_own(settings)
    if not settings.data.is_dir():
        settings.data.mkdir(parents=True)
        settings.data.chmod(folder_mode(settings))
    if settings.database_url is None:
        (settings.data / DATABASE).touch(0o600)  # SQLite gives the same mode to its other files


def _require_own(settings: Settings) -> None:
    # A mounted volume contains `lost+found`, snapshots and file managers add hidden names, and a service
    # manager may have opened the hub's log there.
    present = os.listdir(settings.data) if settings.data.is_dir() else ()
    names = {
        name for name in present if not name.startswith(".") and not name.endswith((".log", "lost+found"))
    }
    marks = {DATABASE} if settings.database_url is None else {DATABASE, "objects"}
    if names <= _OWN_NAMES or names & marks:
        return
    raise ForeignFolder(settings.data, min(names - _OWN_NAMES))


def find_open_path(settings: Settings) -> Path | None:
    """Return the data folder or its database if other users of this machine can read it, otherwise None."""
    for path, allowed in ((settings.data, folder_mode(settings)), (settings.data / DATABASE, 0o600)):
        with contextlib.suppress(OSError):
            if stat.S_IMODE(path.stat().st_mode) & ~allowed & 0o077:
                return path
    return None


def folder_mode(settings: Settings) -> int:
    """Return the mode of the data folder, which also limits the mode of its files."""
    return 0o750 if settings.accel_prefix is not None else PRIVATE


def close_hint(path: Path) -> str:
    """Return the command that removes other users' access to a path."""
    return f"run `chmod -R go-rwx {shlex.quote(str(path))}`"


def object_key(sha256: str) -> str:
    """Return the storage key for content with this digest."""
    return f"sha256/{sha256[:2]}/{sha256[2:]}"


AWAY = "away"
"""Placeholder for the digests of missing objects if the store is unavailable."""


class ObjectMissing(FileNotFoundError):
    """A referenced object is not in the store. `wander-hub fsck` reports what refers to it."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"the object {sha256} is missing")
        self.sha256 = sha256


@lru_cache(1000)
def log_missing(sha256: str) -> None:
    """Log that an object is missing, once per process."""
    logger.error("the object %s is missing: run `wander-hub fsck` to see what needs it", sha256)


@contextlib.contextmanager
def spare_missing(lost: set[str]) -> Iterator[None]:
    """Suppress and log the error if an object is missing or the store does not work.

    The digest of a missing object is added to `lost`, or `AWAY` if the store does not work.
    """
    try:
        yield
    except ObjectMissing as error:
        log_missing(error.sha256)
        lost.add(error.sha256)
    except BaseError as error:
        logger.error("the object store does not work: %s", error)
        lost.add(AWAY)


@contextlib.contextmanager
def _named(sha256: str) -> Iterator[None]:
    """Raise `ObjectMissing` with the digest if the store does not have the object."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(sha256) from error


@dataclass(frozen=True)
class StoredObject:
    """An entry of the store."""

    path: str
    sha256: str | None
    """Digest according to the key; None if the key does not have the format of the hub's keys."""
    size: int
    modified_at: datetime


def digest_of(file: IO[bytes]) -> tuple[str, int]:
    """Return the SHA-256 and size of a seekable file, and rewind it."""
    digest, size = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
    file.seek(0)
    return digest.hexdigest(), size


def copy_pieces(pieces: Iterable[bytes], into: IO[bytes] | WritableFile | None = None) -> str:
    """Copy pieces to a file, if given, and return the SHA-256 of their concatenation."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        if into is not None:
            into.write(piece)
    return digest.hexdigest()


class Storage:
    """Content-addressed objects in a folder, in an object store or in memory."""

    def __init__(self, store: ObjectStore, root: Path | None = None) -> None:
        self._store = store
        self._root = root

    @classmethod
    def open(cls, url: str | None, folder: Path) -> Storage:
        """Open the store at a URL; None means the folder, which is created if necessary."""
        if url is None:
            folder.mkdir(parents=True, exist_ok=True)
            return cls(LocalStore(folder), folder)
        if url.startswith("memory:"):
            return cls(MemoryStore())
        plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        return cls(from_url(url, retry_config=_RETRIES, client_options={"allow_http": plain}))

    @classmethod
    def of(cls, settings: Settings) -> Storage:
        """Open the store of a hub."""
        return cls.open(settings.storage_url, settings.data / "objects")

    def put(self, file: IO[bytes]) -> str:
        """Store a seekable file and return its SHA-256."""
        sha256, size = digest_of(file)
        self.keep(file, sha256, size)
        return sha256

    def keep(self, file: IO[bytes], sha256: str, size: int) -> None:
        """Store a seekable file whose digest and size are already known."""
        if self._size(sha256) != size:
            file.seek(0)
            obstore.put(self._store, object_key(sha256), file)

    def keep_pieces(self, pieces: Iterator[bytes], sha256: str, size: int) -> str:
        """Store an object from an iterator of pieces, unless it exists, and return the SHA-256 of the pieces.

        Nothing is stored if that differs from `sha256`.
        """
        if self._size(sha256) == size:
            return copy_pieces(pieces)
        # `put` would consume the pieces inside its own runtime; no other object can be read there.
        writer = obstore.open_writer(self._store, object_key(sha256))
        actual = copy_pieces(pieces, writer)
        if actual == sha256:
            writer.close()  # an unclosed writer creates no object
        return actual

    def ensure(self, sha256: str | None, file: IO[bytes]) -> None:
        """Store a file again if its object was deleted after `put`."""
        if sha256 is not None and self._size(sha256) is None:
            self.put(file)

    def exists(self, sha256: str) -> bool:
        """Return whether an object exists."""
        return self._size(sha256) is not None

    def delete(self, sha256: str) -> None:
        """Delete an object, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, object_key(sha256))

    def objects(self, start: str = "") -> Iterator[StoredObject]:
        """Yield the entries of the store in no particular order; entries that are not objects have no digest.

        `start` is empty or the first two digits of the wanted digests.
        """
        for batch in obstore.list(self._store, f"sha256/{start}" if start else None):
            for entry in batch:
                key = _KEY.fullmatch(entry["path"])
                sha256 = key[1] + key[2] if key else None
                yield StoredObject(entry["path"], sha256, entry["size"], entry["last_modified"])

    def digest(self, sha256: str) -> str:
        """Compute the SHA-256 of an object's stored bytes."""
        return copy_pieces(self.pieces(sha256))

    def read(self, sha256: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the content of an object, or `length` bytes of it from `start`."""
        key = object_key(sha256)
        with _named(sha256):
            if length is None:
                return bytes(obstore.get(self._store, key).bytes())
            return bytes(obstore.get_range(self._store, key, start=start, length=length))

    def pieces(self, sha256: str) -> Iterator[bytes]:
        """Yield the content in chunks."""
        with _named(sha256):
            stored = obstore.get(self._store, object_key(sha256))
        for piece in stored.stream(min_chunk_size=CHUNK):
            yield bytes(piece)

    def open_file(self, sha256: str) -> IO[bytes]:
        """Open the content as a seekable file; if the store is not a folder, this downloads a copy."""
        path = self.local_path(sha256)
        if path is not None:
            with _named(sha256):
                return path.open("rb")
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.SpooledTemporaryFile(IN_MEMORY))
            copy_pieces(self.pieces(sha256), file)
            file.seek(0)
            stack.pop_all()  # the caller closes the file
        return file

    async def stream(self, sha256: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes from `start` up to but not including `end`."""
        key = object_key(sha256)
        for begin in range(start, end, CHUNK):
            last = min(begin + CHUNK, end)
            with _named(sha256):
                piece = bytes(await obstore.get_range_async(self._store, key, start=begin, end=last))
            yield piece

    def local_path(self, sha256: str) -> Path | None:
        """Return the path of the content's file if the store is a folder, so that the kernel can send it;
        otherwise None."""
        return self._root / object_key(sha256) if self._root else None

    def presign(self, sha256: str, seconds: int) -> str | None:
        """Return a download address that is valid for some seconds; None if the store cannot presign."""
        if not isinstance(self._store, S3Store | GCSStore | AzureStore):
            return None
        return obstore.sign(self._store, "GET", object_key(sha256), timedelta(seconds=seconds))

    def healthy(self) -> bool:
        """Return whether the store responds."""
        try:
            obstore.list_with_delimiter(self._store)
        except Exception:  # noqa: BLE001 - any error means that the store does not work
            return False
        return self._root is None or self._root.is_dir()

    def _size(self, sha256: str) -> int | None:
        path = self.local_path(sha256)
        try:
            if path is not None:
                return path.stat().st_size
            return obstore.head(self._store, object_key(sha256))["size"]
        except FileNotFoundError:
            return None
