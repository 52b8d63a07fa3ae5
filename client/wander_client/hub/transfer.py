"""Sends versions, models and runs to a hub in parts, and sends again what was lost on the way.

Every request of a transfer is harmless when it is repeated, so each is made again while the hub does not
answer, and a sender who was cut off sends only what the hub lacks. Whatever ends an attempt (Ctrl-C, a lost
network, `kill -9`), the hub keeps what arrived for a while.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Generic, TypeVar
from urllib.parse import quote

import zstandard
from pydantic import BaseModel
from wander.wire import VersionDetail
from wander.wire.models import NewModel
from wander.wire.transfers import NewRun, NewUpload, TransferInfo, TransferredPart

from wander_client.errors import ClientError, Unavailable
from wander_client.hub.api import HubApi

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
Parts = Callable[[int], Iterator[bytes]]
"""Yields the bytes of a file from its beginning, in parts up to a number of bytes."""
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
    new: bool = True
    """False when the hub had the very same whole."""


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
    sender = Sender(hub, PATIENCE, GO_ON, sleep=sleep)
    parts = {name: parts_of(body) for name, body in bodies.items()}
    done = send(sender, "versions", wanted, parts, VersionDetail, told=told)
    return Publication(done.made, done.sent, done.resumed_bytes)


def parts_of(body: BinaryIO) -> Parts:
    """Return what yields a file in parts."""

    def read(most: int) -> Iterator[bytes]:
        body.seek(0)
        while part := body.read(most):
            yield part

    return read


def send(
    sender: Sender,
    kind: str,
    wanted: NewUpload | NewModel | NewRun,
    bodies: Mapping[str, Parts],
    answer: type[Made],
    *,
    told: Told = lambda done, total: None,
    packed: frozenset[str] = frozenset(),
) -> Sent[Made]:
    """Announce files, send what the hub lacks of them, and finish; return what they became.

    `packed` names the files whose parts travel compressed. Raises what the hub refuses them for;
    `Unavailable` when it cannot be reached for a while.
    """
    hub, path = sender.hub, f"/api/v1/transfers/{kind}"
    info = sender.persist(lambda: hub.change("POST", path, TransferInfo, wanted))
    announced = {file.filename: file.size for file in wanted.files}
    hub.require({file.filename: file.size for file in info.files} == announced, "these files")
    place = f"{path}/{quote(info.id, safe='')}"
    present = {(part.filename, part.offset, part.sha256) for part in info.parts}
    missing = [file for file in info.files if not (file.there or info.finished)]
    total = sum(announced.values())
    done, resumed = total - sum(file.size for file in missing), 0
    try:
        for file in missing:
            offset = 0
            for part in bodies[file.filename](min(info.part_bytes, CHUNK_BYTES)):
                sha256 = hashlib.sha256(part).hexdigest()
                if (file.filename, offset, sha256) in present:
                    resumed += len(part)
                else:
                    content = zstandard.compress(part) if file.filename in packed else part
                    address = f"{place}/files/{quote(file.filename, safe='')}?offset={offset}&digest={sha256}"
                    sender.persist(partial(hub.send_bytes, "PUT", address, content, TransferredPart, {}))
                offset += len(part)
                told(done + offset, total)
            done += file.size
        made = sender.persist(lambda: hub.change("POST", f"{place}/finish", answer))
    except Unavailable:
        raise
    except ClientError as error:
        # The hub refuses these very bytes: nobody will want the rest of them.
        if error.code != "concurrent_change":
            with contextlib.suppress(ClientError):
                hub.change("DELETE", place, None)
        raise
    return Sent(made, frozenset(file.filename for file in missing), resumed, not info.finished)
