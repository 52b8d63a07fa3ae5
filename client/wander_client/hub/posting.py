"""Post a run folder to the hub in parts. Parts that have arrived are not sent again.

The run's digest identifies the upload, so an interrupted upload continues where it stopped. Rollouts are sent
in the manifest's order of examples, so that the hub can store each part in its final form. Only the offset
and the digest of each line are kept in memory.
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
from wander_client.hub.transfer import Parts, Told, TransferSender, parts_of, send

if TYPE_CHECKING:
    from wander.wire import RunManifest

ARTIFACTS = (
    *("metrics.jsonl", "steps.jsonl", "checkpoints.jsonl"),
    *("evaluations.jsonl", "alerts.jsonl", "samples.jsonl", "*.png", "*.svg"),
)
"""Files that are posted in addition to the manifest and the rollouts."""
PATIENCE = 120.0
"""Seconds of retries if the hub does not respond."""
_GO_ON = "post the run again to continue; the sent parts are saved"
_MISSING = -1
_MOST_INDEXES = 10_000_000
"""Maximum number of rollouts that get memory before any rollout is read."""
_FORMATS = {".jsonl": "JSON Lines", ".png": "a PNG picture", ".svg": "an SVG picture"}

Signer = Callable[[str], RunSignature]
"""Function that signs the digest of a run."""


@dataclass
class Parcel:
    """A run folder that is ready to be posted."""

    manifest: bytes
    rollouts: IO[bytes]
    """Uncompressed lines, in the order of the record."""
    lines: Lines
    artifacts: dict[str, Path]
    files: list[RunFile]
    """Files as they are announced."""
    sha256: str

    @property
    def count(self) -> int:
        """Number of rollouts."""
        return len(self.lines.offsets)

    def parts(self, most: int) -> Iterator[bytes]:
        """Yield the lines in parts of up to `most` bytes. A longer line becomes its own part."""
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
    """The lines of a run's rollouts, in the manifest's order."""

    offsets: array[int]
    """Offset of each line."""
    lengths: array[int]
    size: int
    """Total bytes of the lines as they are sent."""
    sha256: str | None
    """Digest of the rollouts, or None for a run without rollouts."""


def _published(line: bytes) -> bytes:
    """Return a line as it is sent."""
    return publish_rollout(line).rstrip(b"\n") + b"\n"


def files_of(folder: Path) -> list[Path]:
    """Return the files of a run folder that are posted: manifest, rollouts and artifacts."""
    present = [
        folder / name for name in ("rollouts.jsonl", "rollouts.jsonl.zst") if os.path.lexists(folder / name)
    ]
    if not present:
        raise NotFound(
            f"`{folder}` has no rollouts",
            hint=f"play them with `wander eval --resume {folder}`",
            code="no_rollouts",
        )
    artifacts = sorted(path for pattern in ARTIFACTS for path in folder.glob(pattern))
    for path in (present[0], *artifacts):
        with open_record(path):  # rejects links, because their targets would be posted
            pass
    return [folder / "run.json", present[0], *artifacts]


@contextmanager
def pack_run(manifest: RunManifest, files: list[Path]) -> Iterator[Parcel]:
    """Yield the parcel of a run, with its rollouts in order and its digests.

    `files` comes from `files_of`.
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
    """Post a run. Returns the posted run, and whether it is new on the hub.

    `told` is called with the number of bytes that arrived, and `trouble` when a request is retried. Raises
    `Unavailable` if the hub does not respond for `PATIENCE` seconds. Post the run again to continue.
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
    sender = TransferSender(hub, PATIENCE, _GO_ON, trouble=trouble, sleep=sleep)
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
    """Read a file that is posted. Raises `ClientError` if its content does not match its name.

    Hard links look like ordinary files, so this check also finds a private key with the name of a plot.
    """
    content = read_whole(path, MOST_LIST_BYTES)
    try:
        if path.suffix == ".jsonl":
            *whole, rest = content.split(b"\n")
            for line in whole:
                parse_object(line)
            if rest and not rest.startswith(b"{"):  # otherwise, the last line may be incomplete after a kill
                raise ValueError
            return publish_lines(content)
        elif not content.lstrip().startswith(b"\x89PNG" if path.suffix == ".png" else b"<"):
            raise ValueError
        elif path.suffix == ".svg":
            return publish_text(content.decode()).encode()
    except ValueError as error:
        raise ClientError(
            f"`{path}` is not {_FORMATS[path.suffix]}, so it cannot be posted",
            hint="remove it from the folder",
            code="bad_artifact",
        ) from error
    return content


def _in_order(manifest: RunManifest, plain: IO[bytes], path: Path) -> Lines:
    """Return the positions of the rollouts in the manifest's order."""
    order = RolloutOrder(manifest.example_ids, manifest.rollouts_per_example)
    size = plain.seek(0, os.SEEK_END)
    if manifest.expected_rollouts > max(_MOST_INDEXES, size):
        raise ClientError(
            f"`{path}` has only {size:,} bytes, but its manifest has {manifest.expected_rollouts:,} rollouts",
            code="bad_rollouts",
        )
    offsets = array("q", [_MISSING]) * manifest.expected_rollouts
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
            if (index := order.find(key)) is None:
                raise ClientError(
                    f"line {number} of `{path}` is not a rollout of the manifest", code="bad_rollouts"
                )
            # If a rollout has several lines, the last line counts.
            offsets[index], lengths[index] = offset, len(line)
            sent = _published(line)
            sizes[index] = len(sent)
            digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES] = line_digest(sent)
        offset += len(line)
    whole = RolloutsDigest()
    for index, start in enumerate(offsets):
        if start != _MISSING:
            whole.add(bytes(digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]))
    played = array("q", (start for start in offsets if start != _MISSING))
    return Lines(played, array("q", filter(None, lengths)), sum(sizes), whole.hexdigest())


def _key(line: bytes, number: int, path: Path) -> tuple[str, int] | None:
    """Return the key of the rollout in a line, or None for an empty or incomplete last line."""
    if not line.strip():
        return None
    try:
        key = key_at_start(line) if line.endswith(b"}\n") else None  # the hub reads the rest
        return key or parse_record(Rollout, line).key
    except ValueError as error:
        if not line.endswith(b"\n"):
            return None
        raise ClientError(
            f"line {number} of `{path}` is not a rollout", hint="remove this line", code="bad_rollouts"
        ) from error
