"""Sends what goes to a hub in parts, whatever is lost on the way: requests, and the files of a version.

Every request of a transfer is harmless when it is repeated, so each is made again while the hub does not
answer, and whoever was cut off goes on where the hub is. Whatever ends an attempt (Ctrl-C, a lost network,
`kill -9`), the hub keeps what it has of a version's files for a while. Builds of the common backends give the
same bytes every time; where a build does not, it is another upload.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import BinaryIO, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel
from wander.wire import VersionDetail
from wander.wire.models import NewModel
from wander.wire.uploads import OFFSET_HEADER, NewUpload, UploadedFile, UploadSession

from wander_client.errors import ClientError, Unavailable
from wander_client.hub.api import HubApi, Model

ATTEMPTS = 5
"""A request is made this often at least, however long each attempt takes."""
CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes of a part, about; a single rollout may be larger."""
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0

PATIENCE = 15.0
"""Seconds for which a hub that does not answer is asked again."""
GO_ON = "run the same command again: it goes on where this one stopped"

Told = Callable[[int, int], None]
"""Is told how many bytes the hub has, and of how many."""
Answer = TypeVar("Answer")
Made = TypeVar("Made", bound=BaseModel)


class Sender:
    """The requests of one transfer, each made again for `patience` seconds while the hub does not answer."""

    def __init__(
        self,
        hub: HubApi,
        patience: float,
        go_on: str,
        *,
        trouble: Callable[[str], None] = lambda words: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.hub = hub
        self._patience, self._go_on = patience, go_on
        self._trouble, self._sleep = trouble, sleep

    def put(self, path: str, content: bytes, model: type[Model]) -> Model:
        """Send a part that the hub takes in any order."""
        return self.persist(lambda: self.hub.send_bytes("PUT", path, content, model, {}))

    def persist(self, request: Callable[[], Answer]) -> Answer:
        """Make a request until the hub answers; the hint of what is raised says how to go on."""
        give_up, wait, failed = time.monotonic() + self._patience, _FIRST_WAIT, 0
        while True:
            try:
                return request()
            except Unavailable as error:
                failed += 1
                late = failed >= ATTEMPTS and time.monotonic() + wait > give_up
                if late or not error.retryable:
                    error.hint = self._go_on
                    raise
                self._trouble(f"{error}; trying again")
                self._sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)


@dataclass(frozen=True)
class Sent(Generic[Made]):
    """What became of files that were sent."""

    made: Made
    sent: frozenset[str]
    """Names of the files that the hub did not have there before."""
    resumed_bytes: int
    """What the hub had of them from an earlier attempt."""


@dataclass(frozen=True, repr=False)
class Publication:
    """A published version."""

    version: VersionDetail
    sent: frozenset[str]
    """Names of the files that the version did not have before."""
    resumed_bytes: int
    """What the hub had of them from an earlier attempt."""

    def __repr__(self) -> str:
        name = f"{self.version.owner}/{self.version.name}@{self.version.version}"
        return f"<Publication {name}: sent {', '.join(sorted(self.sent)) or 'nothing, it was there'}>"


def publish_files(
    hub: HubApi,
    wanted: NewUpload,
    bodies: Mapping[str, BinaryIO],
    *,
    told: Told = lambda done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Publication:
    """Publish files, whose bytes are `bodies` by name, as one version; all become visible or none."""
    done = send_files(hub, "/api/v1/uploads", wanted, bodies, VersionDetail, told=told, sleep=sleep)
    return Publication(done.made, done.sent, done.resumed_bytes)


def send_files(
    hub: HubApi,
    path: str,
    wanted: NewUpload | NewModel,
    bodies: Mapping[str, BinaryIO],
    kind: type[Made],
    *,
    told: Told = lambda done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Sent[Made]:
    """Send files, whose bytes are `bodies` by name, to where they are announced; return what they became.

    Raises what the hub refuses them for; `Unavailable` when it cannot be reached for a while.
    """
    session = hub.change("POST", path, UploadSession, wanted)
    announced = {file.filename: file.size for file in wanted.files}
    hub.require({file.filename: file.size for file in session.files} == announced, "these files")
    sender = Sender(hub, PATIENCE, GO_ON, sleep=sleep)
    place = f"/api/v1/uploads/{quote(session.id, safe='')}"
    total, done = sum(file.size for file in session.files), sum(file.offset for file in session.files)
    try:
        for file in session.files:
            for offset in _send_file(sender, place, file, bodies, session.chunk_bytes):
                told(done - file.offset + offset, total)
            done += file.size - file.offset
        made = sender.persist(lambda: hub.change("POST", f"{place}/finalize", kind))
    except Unavailable:
        raise
    except ClientError:
        # The hub refuses these very bytes: nobody will want the rest of them.
        with contextlib.suppress(ClientError):
            hub.change("DELETE", place, None)
        raise
    sent = frozenset(file.filename for file in session.files if not file.published)
    resumed = sum(file.offset for file in session.files if not file.published)
    return Sent(made, sent, resumed)


def _send_file(
    sender: Sender, place: str, file: UploadedFile, bodies: Mapping[str, BinaryIO], most: int
) -> Iterator[int]:
    """Send what the hub lacks of a file; yield how far it is, by its word and not ours."""
    if file.published:
        return
    path, body, offset = f"{place}/files/{quote(file.filename, safe='')}", bodies[file.filename], file.offset
    yield offset
    chunk = min(most, CHUNK_BYTES)
    left = 4 * (file.size // chunk + 4)  # a hub that lost a part states an earlier offset, but not for ever
    while offset < file.size:
        sender.hub.require(left > 0 and offset >= 0, file.filename)
        body.seek(offset)
        part = body.read(chunk)
        offset = sender.persist(partial(_send_part, sender.hub, path, part, offset, count()))
        left -= 1
        yield offset


def _send_part(hub: HubApi, path: str, part: bytes, offset: int, attempts: Iterator[int]) -> int:
    """Send a part and return where the hub is then."""
    # From the second attempt on it is asked first: it may have the part though its answer was lost.
    if next(attempts) and (found := hub.read(path, UploadedFile).offset) != offset:
        return found
    try:
        return hub.send_bytes("PUT", path, part, UploadedFile, {OFFSET_HEADER: str(offset)}).offset
    except ClientError as error:
        if error.code != "offset_mismatch" or (found := hub.read(path, UploadedFile).offset) == offset:
            raise
        return found
