"""Sends a run folder to the hub, part by part: what was sent once is never sent again.

The run's digest names the posting, so it goes on where it stopped, whoever was killed. Rollouts go in the
manifest's order of examples, which lets the hub store each part as it will stay; only the offset and the
digest of every line are held here.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from wander.evals.store.examples import RolloutOrder
from wander.evals.store.jsonl import (
    LONGEST_LINE,
    MOST_LIST_BYTES,
    key_at_start,
    open_plain,
    open_record,
    parse_object,
    parse_record,
    read_whole,
)
from wander.types import Rollout
from wander.wire import RunDetail
from wander.wire.postings import (
    DIGEST_BYTES,
    MAX_CHUNK_ROLLOUTS,
    ROLLOUTS,
    RolloutsDigest,
    RunSignature,
    line_digest,
    run_digest,
)
from wander.wire.transfers import NewRun, RunFile

from wander_client.errors import ClientError, NotFound
from wander_client.hub.api import HubApi
from wander_client.hub.local_paths import publish_lines, publish_manifest, publish_rollout, publish_text
from wander_client.hub.transfer import Parts, Sender, Told, parts_of, send

if TYPE_CHECKING:
    from wander.wire import RunManifest

ARTIFACTS = (
    *("metrics.jsonl", "steps.jsonl", "checkpoints.jsonl"),
    *("evaluations.jsonl", "alerts.jsonl", "samples.jsonl", "*.png", "*.svg"),
)
"""What is posted beside manifest and rollouts."""
PATIENCE = 120.0
"""Seconds for which a hub that does not answer is asked again."""
_GO_ON = "what was sent is kept: post it again to go on"
_NOWHERE = -1
_MOST_PLACES = 10_000_000
"""Rollouts for which there is room before any is read, whatever a manifest says."""
_FORMATS = {".jsonl": "JSON Lines", ".png": "a PNG picture", ".svg": "an SVG picture"}

Signer = Callable[[str], RunSignature]
"""Signs the digest of a run."""


@dataclass
class Parcel:
    """A run folder, ready to be sent."""

    manifest: bytes
    rollouts: IO[bytes]
    """The plain lines, in the order of the record."""
    lines: Lines
    artifacts: dict[str, Path]
    files: list[RunFile]
    """The files as they are announced."""
    sha256: str

    @property
    def count(self) -> int:
        """How many rollouts there are."""
        return len(self.lines.offsets)

    def parts(self, most: int) -> Iterator[bytes]:
        """Yield the lines in parts up to a number of bytes; a longer line is a part of its own."""
        part: list[bytes] = []
        size = 0
        for offset, length in zip(self.lines.offsets, self.lines.lengths, strict=True):
            self.rollouts.seek(offset)
            line = _published(self.rollouts.read(length))
            if part and (len(part) == MAX_CHUNK_ROLLOUTS or size + len(line) > most):
                yield b"".join(part)
                part, size = [], 0
            part.append(line)
            size += len(line)
        if part:
            yield b"".join(part)


@dataclass
class Lines:
    """The lines of a run's rollouts in the manifest's order."""

    offsets: array[int]
    """Where each begins."""
    lengths: array[int]
    size: int
    """Bytes of all lines as they are sent."""
    sha256: str | None
    """Their digest; None for a run without rollouts."""


def _published(line: bytes) -> bytes:
    """Return a line as it is sent."""
    return publish_rollout(line).rstrip(b"\n") + b"\n"


def files_of(folder: Path) -> list[Path]:
    """Return what is posted of a run folder: manifest, rollouts and artifacts."""
    present = [
        folder / name for name in ("rollouts.jsonl", "rollouts.jsonl.zst") if os.path.lexists(folder / name)
    ]
    if not present:
        raise NotFound(
            f"`{folder}` has no rollouts",
            hint=f"play them: `wander eval --resume {folder}`",
            code="no_rollouts",
        )
    artifacts = sorted(path for pattern in ARTIFACTS for path in folder.glob(pattern))
    for path in (present[0], *artifacts):
        with open_record(path):  # refuses links: what they lead to would be posted
            pass
    return [folder / "run.json", present[0], *artifacts]


@contextmanager
def pack_run(manifest: RunManifest, files: list[Path]) -> Iterator[Parcel]:
    """Give a run's parcel, its rollouts found, put in order and digested.

    `files` are those of `files_of`.
    """
    manifest_file, rollouts, *artifacts = files
    with open_plain(rollouts) as plain:
        lines = _in_order(manifest, plain, rollouts)
        text = publish_manifest(read_whole(manifest_file))
        sent: list[RunFile] = []
        for path in artifacts:
            content = _read_artifact(path)
            digest = hashlib.sha256(content).hexdigest()
            sent.append(RunFile(filename=path.name, size=len(content), sha256=digest))
        sha256 = run_digest(text, lines.sha256, {file.filename: file.sha256 for file in sent})
        if lines.sha256 is not None:
            sent.append(RunFile(filename=ROLLOUTS, size=lines.size, sha256=lines.sha256))
        yield Parcel(text, plain, lines, {path.name: path for path in artifacts}, sent, sha256)


def post(
    hub: HubApi,
    parcel: Parcel,
    *,
    private: bool = False,
    name: str = "",
    signer: Signer | None = None,
    told: Told = lambda done, total: None,
    trouble: Callable[[str], None] = lambda words: None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[RunDetail, bool]:
    """Send a run; return it and whether it is new to the hub.

    `told` hears how many bytes are there, `trouble` when the hub has to be asked again. Raises
    `Unavailable` when it does not answer for `PATIENCE` seconds; posting the run again then goes on.
    """
    wanted = NewRun(
        manifest=parcel.manifest.decode(),
        files=parcel.files,
        private=private,
        name=name,
        signature=signer(parcel.sha256) if signer else None,
    )
    bodies: dict[str, Parts] = {ROLLOUTS: parcel.parts}
    bodies |= {file: partial(_artifact_parts, path) for file, path in parcel.artifacts.items()}
    sender = Sender(hub, PATIENCE, _GO_ON, trouble=trouble, sleep=sleep)
    sent = send(
        *(sender, "runs", wanted, bodies, RunDetail),
        told=told,
        packed=frozenset({ROLLOUTS}),
    )
    hub.require(sent.made.sha256 == parcel.sha256, "this run")
    return sent.made, sent.new


def _artifact_parts(path: Path, most: int) -> Iterator[bytes]:
    return parts_of(io.BytesIO(_read_artifact(path)))(most)


def _read_artifact(path: Path) -> bytes:
    """Return a file that is posted; raises `ClientError` for one that is not what its name says.

    A hard link cannot be told from a file, so a private key under the name of a plot is found by its content.
    """
    content = read_whole(path, MOST_LIST_BYTES)
    try:
        if path.suffix == ".jsonl":
            *whole, rest = content.split(b"\n")
            for line in whole:
                parse_object(line)
            if rest and not rest.startswith(b"{"):  # else a kill may have cut it short
                raise ValueError
            return publish_lines(content)
        elif not content.lstrip().startswith(b"\x89PNG" if path.suffix == ".png" else b"<"):
            raise ValueError
        elif path.suffix == ".svg":
            return publish_text(content.decode()).encode()
    except ValueError as error:
        raise ClientError(
            f"`{path}` is not {_FORMATS[path.suffix]}, so it is not posted",
            hint="remove it from the folder",
            code="bad_artifact",
        ) from error
    return content


def _in_order(manifest: RunManifest, plain: IO[bytes], path: Path) -> Lines:
    """Return the line of every rollout in the manifest's order."""
    order = RolloutOrder(manifest.example_ids, manifest.rollouts_per_example)
    size = plain.seek(0, os.SEEK_END)
    if manifest.expected_rollouts > max(_MOST_PLACES, size):
        raise ClientError(
            f"`{path}` has {size:,} bytes, and its manifest plays {manifest.expected_rollouts:,} rollouts",
            code="bad_rollouts",
        )
    offsets = array("q", [_NOWHERE]) * manifest.expected_rollouts
    lengths = array("q", [0]) * manifest.expected_rollouts
    sizes = array("q", [0]) * manifest.expected_rollouts
    digests = bytearray(DIGEST_BYTES * manifest.expected_rollouts)
    plain.seek(0)
    offset = 0
    for number, line in enumerate(iter(lambda: plain.readline(LONGEST_LINE + 1), b""), start=1):
        if len(line) > LONGEST_LINE:
            raise ClientError(
                f"line {number} of `{path}` has more than {LONGEST_LINE:,} bytes", code="bad_rollouts"
            )
        key = _key(line, number, path)
        if key is not None:
            if (place := order.find(key)) is None:
                raise ClientError(
                    f"line {number} of `{path}` is no rollout that the manifest plays", code="bad_rollouts"
                )
            # Of the lines of one rollout, the last one counts.
            offsets[place], lengths[place] = offset, len(line)
            sent = _published(line)
            sizes[place] = len(sent)
            digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES] = line_digest(sent)
        offset += len(line)
    whole = RolloutsDigest()
    for place, start in enumerate(offsets):
        if start != _NOWHERE:
            whole.add(bytes(digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]))
    played = array("q", (start for start in offsets if start != _NOWHERE))
    return Lines(played, array("q", filter(None, lengths)), sum(sizes), whole.hexdigest())


def _key(line: bytes, number: int, path: Path) -> tuple[str, int] | None:
    """Return the key of the rollout of a line; None for an empty or a torn last line."""
    if not line.strip():
        return None
    try:
        found = key_at_start(line) if line.endswith(b"}\n") else None  # the hub reads the rest
        return found or parse_record(Rollout, line).key
    except ValueError as error:
        if not line.endswith(b"\n"):
            return None
        raise ClientError(
            f"line {number} of `{path}` is not a rollout", hint="take that line out", code="bad_rollouts"
        ) from error
