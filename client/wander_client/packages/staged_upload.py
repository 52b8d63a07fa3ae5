"""Sends the files of a version to a hub: announced together, in chunks, published together.

Whatever ends an attempt (Ctrl-C, a lost network, `kill -9`), the hub keeps what it has for a while: the same
files sent again go on where it is. Builds of the common backends give the same bytes every time; where a
build does not, it is another upload.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import quote

from wander.wire import VersionDetail
from wander.wire.uploads import OFFSET_HEADER, NewUpload, UploadedFile, UploadSession

from wander_client.errors import ClientError, Unavailable
from wander_client.hub.api import HubApi

CHUNK_BYTES = 4 * 1024 * 1024
ATTEMPTS = 5
"""How often in a row a chunk may fail before the command gives up."""
_GO_ON = "run the same command again: it goes on where this one stopped"

Told = Callable[[int, int], None]
"""Is told how many bytes the hub has, and of how many."""


@dataclass(frozen=True)
class Publication:
    """A published version."""

    version: VersionDetail
    sent: frozenset[str]
    """Names of the files that the version did not have before."""
    resumed_bytes: int
    """What the hub had of them from an earlier attempt."""


def publish_files(
    hub: HubApi,
    wanted: NewUpload,
    bodies: Mapping[str, BinaryIO],
    *,
    told: Told = lambda done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Publication:
    """Publish files, whose bytes are `bodies` by name, as one version; all become visible or none.

    Raises what the hub refuses them for; `Unavailable` when it cannot be reached for a while.
    """
    session = hub.change("POST", "/api/v1/uploads", UploadSession, wanted)
    sending = _Sending(hub, session, told, sleep)
    try:
        for file in session.files:
            if not file.published:
                sending.send(file, bodies[file.filename])
        version = sending.finalize()
    except Unavailable as error:
        error.hint = _GO_ON
        raise
    except ClientError:
        # The hub refuses these very bytes: nobody will want the rest of them.
        with contextlib.suppress(ClientError):
            hub.change("DELETE", _path(session), None)
        raise
    sent = frozenset(file.filename for file in session.files if not file.published)
    resumed = sum(file.offset for file in session.files if not file.published)
    return Publication(version, sent, resumed)


class _Sending:
    """One attempt to send all that a hub lacks."""

    def __init__(
        self, hub: HubApi, session: UploadSession, told: Told, sleep: Callable[[float], None]
    ) -> None:
        self._hub = hub
        self._session = session
        self._told = told
        self._sleep = sleep
        self._chunk_bytes = min(session.chunk_bytes, CHUNK_BYTES)
        self._there = {file.filename: file.offset for file in session.files}
        self._total = sum(file.size for file in session.files)

    def send(self, file: UploadedFile, body: BinaryIO) -> None:
        """Send what the hub lacks of a file; where it has got to is its word, not ours."""
        offset, failed = file.offset, 0
        path = f"{_path(self._session)}/files/{quote(file.filename, safe='')}"
        self._tell(file, offset)
        while offset < file.size:
            body.seek(offset)
            try:
                state = self._hub.send_bytes(
                    "PUT", path, body.read(self._chunk_bytes), UploadedFile, {OFFSET_HEADER: str(offset)}
                )
            except ClientError as error:
                failed += 1
                if failed >= ATTEMPTS or not _passes(error):
                    raise
                if isinstance(error, Unavailable):
                    self._sleep(0.5 * 2**failed)
                state = self._hub.read(path, UploadedFile)
            else:
                failed = 0
            offset = state.offset
            self._tell(file, offset)

    def finalize(self) -> VersionDetail:
        """Make the hub publish what it has; asked again, it gives the same answer."""
        for attempt in range(1, ATTEMPTS):
            try:
                return self._finalize()
            except Unavailable as error:
                if not error.retryable:
                    raise
                self._sleep(0.5 * 2**attempt)
        return self._finalize()

    def _finalize(self) -> VersionDetail:
        return self._hub.change("POST", f"{_path(self._session)}/finalize", VersionDetail)

    def _tell(self, file: UploadedFile, offset: int) -> None:
        self._there[file.filename] = offset
        self._told(sum(self._there.values()), self._total)


def _passes(error: ClientError) -> bool:
    """Tell whether the next attempt may fare better."""
    return (isinstance(error, Unavailable) and error.retryable) or error.code == "offset_mismatch"


def _path(session: UploadSession) -> str:
    return f"/api/v1/uploads/{quote(session.id, safe='')}"
