"""Changes that somebody may make to a run's folder before sending it."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

ALL_USERS_FILE = "/etc/passwd"


def change_manifest(run: Path, **fields: Any) -> None:
    """Change fields of `run.json`; a dotted name is the path of a nested field."""
    path = run / "run.json"
    manifest = json.loads(path.read_text())
    for name, value in fields.items():
        *places, last = name.split("__")
        inner = manifest
        for place in places:
            inner = inner[place]
        inner[last] = value
    path.write_text(json.dumps(manifest))


def replace(run: Path, name: str, make: Callable[[Path], object]) -> None:
    """Replace a file of a run."""
    (run / name).unlink(missing_ok=True)
    if name == "rollouts.jsonl":
        (run / "rollouts.jsonl.zst").unlink(missing_ok=True)
    make(run / name)


def sparse(size: int) -> Callable[[Path], None]:
    """Return a function that makes a sparse file of zero bytes."""

    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return make


def make_socket(path: Path) -> None:
    """Make a socket by its relative path: the absolute path may be too long."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


UNPLAIN: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": make_socket,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "zeros": sparse(1 << 36),
}
"""What may be in the place of a file that is read, by name; each makes it at a path."""


def make_bomb(path: Path) -> None:
    """Write 400 KB of repeated bytes that unpack to 13 GB."""
    block = struct.pack("<I", (1 << 17) << 3 | 1 << 1)[:3] + b"\n"
    frame = struct.pack("<I", 0xFD2FB528) + bytes([0, 0x58])
    end = struct.pack("<I", 1)[:3]
    path.write_bytes(frame + block * 100_000 + end)


def lie_about_size(path: Path) -> None:
    """Write a frame that claims to hold 60 GB."""
    path.write_bytes(struct.pack("<IB", 0xFD2FB528, 0xE0) + struct.pack("<Q", 60 << 30) + b"\x01\x00\x00")


def pack_lines(count: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(zstandard.compress(b"{}\n" * count)) and None


TRAINING_FILES = (
    *("metrics.jsonl", "evaluations.jsonl", "samples.jsonl", "alerts.jsonl", "checkpoints.jsonl"),
    *("outcome.json", "steps.jsonl", "best.json"),
)
"""What a training run has beside manifest and rollouts."""
REPLACEMENTS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a link": lambda path: path.symlink_to(ALL_USERS_FILE),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "zeros": sparse(1 << 36),
    "deep": lambda path: path.write_text("[" * 100_000 + "\n"),
    "digits": lambda path: path.write_text('{"step": ' + "9" * 100_000 + "}\n"),
}
"""What may be in the place of a file."""

FAULTS: dict[str, Callable[[Path], object]] = {
    "manifest is a FIFO": lambda run: replace(run, "run.json", os.mkfifo),
    "manifest is a folder": lambda run: replace(run, "run.json", Path.mkdir),
    "manifest is a link": lambda run: replace(run, "run.json", lambda p: p.symlink_to(ALL_USERS_FILE)),
    "manifest links to itself": lambda run: replace(run, "run.json", lambda p: p.symlink_to("run.json")),
    "manifest links to a device": lambda run: replace(run, "run.json", lambda p: p.symlink_to("/dev/zero")),
    "manifest is a socket": lambda run: replace(run, "run.json", make_socket),
    "manifest is empty": lambda run: replace(run, "run.json", Path.touch),
    "manifest is no text": lambda run: replace(run, "run.json", lambda p: p.write_bytes(b"\xff\xfe\x00")),
    "manifest is a terabyte": lambda run: replace(run, "run.json", sparse(1 << 40)),
    "manifest is deep": lambda run: replace(run, "run.json", lambda p: p.write_text("[" * 100_000)),
    "manifest has many lists": lambda run: replace(
        run, "run.json", lambda p: p.write_text('{"a": [' + "[]," * 3_000_000 + "[]]}")
    ),
    "a lone surrogate": lambda run: replace(run, "run.json", lambda p: p.write_text('{"run_id": "\\ud800"}')),
    "endless rollouts": lambda run: change_manifest(run, rollouts_per_example=10**12),
    "many digits": lambda run: replace(
        run,
        "run.json",
        lambda p: p.write_text('{"rollouts_per_example": ' + "9" * 100_000 + "}"),
    ),
    "time without a zone": lambda run: change_manifest(run, started_at="2026-01-01T00:00:00"),
    "rollouts are a FIFO": lambda run: replace(run, "rollouts.jsonl", os.mkfifo),
    "rollouts are a folder": lambda run: replace(run, "rollouts.jsonl", Path.mkdir),
    "rollouts are a link": lambda run: replace(run, "rollouts.jsonl", lambda p: p.symlink_to(ALL_USERS_FILE)),
    "rollouts without a line": lambda run: replace(run, "rollouts.jsonl", sparse(1 << 36)),
    "rollouts are unreadable": lambda run: replace(run, "rollouts.jsonl", lambda p: p.touch(0o000)),
    "rollouts unpack to 13 GB": lambda run: replace(run, "rollouts.jsonl.zst", make_bomb),
    "rollouts claim 60 GB": lambda run: replace(run, "rollouts.jsonl.zst", lie_about_size),
    "packed rollouts are none": lambda run: replace(run, "rollouts.jsonl.zst", pack_lines(10)),
    "summary is a FIFO": lambda run: replace(run, "summary.json", os.mkfifo),
    "summary is a folder": lambda run: replace(run, "summary.json", Path.mkdir),
    "summary is a link": lambda run: replace(run, "summary.json", lambda p: p.symlink_to("/dev/zero")),
    "summary is a terabyte": lambda run: replace(run, "summary.json", sparse(1 << 40)),
    "summary without numbers": lambda run: replace(
        run, "summary.json", lambda p: p.write_text('{"reward_mean": NaN}')
    ),
}
"""What may be wrong with the files that every reader of a run opens."""
