"""Send versions, models and runs to a hub in parts, and resume interrupted transfers.

Every request of a transfer can be repeated safely. So requests are retried while the hub does not respond,
and an interrupted transfer sends only the missing parts. The hub keeps the received parts for a while,
however an attempt ends (Ctrl-C, network failure, `kill -9`).
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
"""Minimum number of attempts for a request, however long they take."""
CHUNK_BYTES = 4 * 1024 * 1024
"""Approximate size of a part in bytes. A single rollout may be larger."""
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0

PATIENCE = 15.0
"""Seconds of retries if the hub does not respond."""
GO_ON = "run the same command again to continue"

Told = Callable[[int, int], None]
"""Callback for the number of bytes on the hub, and the total."""
Parts = Callable[[int], Iterator[bytes]]
"""Function that yields the content of a file in parts of up to a number of bytes."""
Answer = TypeVar("Answer")
Made = TypeVar("Made", bound=BaseModel)


class TransferSender:
    """Sender of the requests of a transfer. Retries for `patience` seconds if the hub does not respond."""

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
        """Retry a request until the hub responds. The hint of the final error tells how to continue."""
        give_up, wait, failed = time.monotonic() + self._patience, _FIRST_WAIT, 0
        while True:
            try:
                return request()
            except Unavailable as error:
                failed += 1
                is_over = failed >= ATTEMPTS and time.monotonic() + wait > give_up
                if is_over or not error.retryable:
                    error.hint = self._go_on
                    raise
                self._trouble(f"{error}; trying again")
                self._sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)


@dataclass(frozen=True)
class Sent(Generic[Made]):
    """The result of a transfer."""

    made: Made
    sent: frozenset[str]
    """Names of the files that were new on the hub."""
    resumed_bytes: int
    """Bytes that the hub had from an earlier attempt."""
    new: bool = True
    """Whether the object is new; False if the hub already had it."""


@dataclass(frozen=True, repr=False)
class Publication:
    """A published version."""

    version: VersionDetail
    sent: frozenset[str]
    """Names of the files that were new in this version."""
    resumed_bytes: int
    """Bytes that the hub had from an earlier attempt."""

    def __repr__(self) -> str:
        name = f"{self.version.owner}/{self.version.name}@{self.version.version}"
        return f"<Publication {name}: sent {', '.join(sorted(self.sent)) or 'nothing, already published'}>"


def publish_files(
    hub: HubApi,
    wanted: NewUpload,
    bodies: Mapping[str, BinaryIO],
    *,
    told: Told = lambda done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Publication:
    """Publish files as a version, atomically. `bodies` contains the content of the files by name."""
    sender = TransferSender(hub, PATIENCE, GO_ON, sleep=sleep)
    parts = {name: parts_of(body) for name, body in bodies.items()}
    done = send(sender, "versions", wanted, parts, VersionDetail, told=told)
    return Publication(done.made, done.sent, done.resumed_bytes)


def parts_of(body: BinaryIO) -> Parts:
    """Return a function that yields a file in parts."""

    def read(most: int) -> Iterator[bytes]:
        body.seek(0)
        while part := body.read(most):
            yield part

    return read


def send(
    sender: TransferSender,
    kind: str,
    wanted: NewUpload | NewModel | NewRun,
    bodies: Mapping[str, Parts],
    answer: type[Made],
    *,
    told: Told = lambda done, total: None,
    packed: frozenset[str] = frozenset(),
) -> Sent[Made]:
    """Announce files, send the missing parts, and finish. Returns the created object.

    `packed` lists the files whose parts are compressed for the transfer. Raises the hub's error if it rejects
    the files, and `Unavailable` if the hub cannot be reached for a while.
    """
    hub, path = sender.hub, f"/api/v1/transfers/{kind}"
    info = sender.persist(lambda: hub.change("POST", path, TransferInfo, wanted))
    announced = {file.filename: file.size for file in wanted.files}
    hub.require({file.filename: file.size for file in info.files} == announced, "these files")
    transfer_path = f"{path}/{quote(info.id, safe='')}"
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
                    name = quote(file.filename, safe="")
                    address = f"{transfer_path}/files/{name}?offset={offset}&digest={sha256}"
                    sender.persist(partial(hub.send_bytes, "PUT", address, content, TransferredPart, {}))
                offset += len(part)
                told(done + offset, total)
            done += file.size
        made = sender.persist(lambda: hub.change("POST", f"{transfer_path}/finish", answer))
    except Unavailable:
        raise
    except ClientError as error:
        # The hub rejected this content, so the rest of it is useless.
        if error.code != "concurrent_change":
            with contextlib.suppress(ClientError):
                hub.change("DELETE", transfer_path, None)
        raise
    return Sent(made, frozenset(file.filename for file in missing), resumed, not info.finished)
