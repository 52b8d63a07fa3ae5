"""Details of a run for the terminal: pinned versions, results and files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander.wire.verification import STATED

from wander_client.runs.found import PostedRun
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from wander.wire import RunManifest
    from wander.wire.reproduction import Reproduction

    from wander_client.runs.found import FoundRun
    from wander_client.terminal.output import Cell


MOST_DIGESTED = 16 << 30
"""Largest size of a file whose digest is shown; a single file of a checkpoint's weights is smaller."""


def list_pinned(manifest: RunManifest) -> Iterator[tuple[str, str]]:
    """Yield the pinned settings of a run as (name, value), without unset ones."""
    environment, model = manifest.environment, manifest.model
    yield "kind", manifest.kind
    yield "environment", f"{environment.full_name} {environment.version or f'from {environment.path}'}"
    yield from _drop_unset(
        ("wheel", environment.wheel_sha256),
        ("lock", environment.lock_sha256 or (environment.unlocked and f"none: {environment.unlocked}")),
        ("arguments", environment.arguments),
        ("sandbox", environment.sandbox and f"{environment.sandbox.tier} {environment.sandbox.version}"),
    )
    yield "model", f"{model.name} ({model.kind})"
    yield from _drop_unset(
        ("endpoint", model.base_url), ("revision", model.revision), ("weights", model.weights_sha256)
    )
    for player, other in manifest.players.items():
        yield f"player {player}", f"{other.name} ({other.kind})"
    yield from _drop_unset(("sampling", manifest.sampling.given()))
    yield "examples", f"{len(manifest.example_ids):,} of {manifest.split}, {manifest.choice}"
    yield "rollouts", f"{manifest.rollouts_per_example} per example"
    yield "task set", manifest.task_set_sha256
    yield "seed", str(manifest.seed)
    ended = f" to {manifest.ended_at:%Y-%m-%d %H:%M:%S}" if manifest.ended_at else ", not finished"
    yield "when", f"{manifest.started_at:%Y-%m-%d %H:%M:%S}{ended} UTC"
    platform = manifest.platform
    packages = "".join(f", {name} {version}" for name, version in platform.packages.items())
    yield "software", f"wander {platform.wander}, Python {platform.python}{packages}"
    accelerator = f", {platform.accelerator}" if platform.accelerator else ""
    yield "platform", f"{platform.system} {platform.machine}{accelerator}"
    dirty = " with changes" if platform.git_dirty else ""
    yield from _drop_unset(("commit", platform.git_commit and f"{platform.git_commit}{dirty}"))
    if manifest.reproduction is not None:
        yield from _list_reproduction(manifest.reproduction)
    yield from _drop_unset(("notes", manifest.notes))


def _list_reproduction(made: Reproduction) -> Iterator[tuple[str, str]]:
    """Yield the information that is needed to repeat a training run."""
    yield "mode", made.told()
    machine, gpus = made.hardware, ", ".join(made.hardware.gpus)
    parts = (machine.cpu, f"{machine.cores} cores", machine.instructions, gpus, machine.driver)
    yield "machine", ", ".join(part for part in parts if part)
    yield "device", f"{made.device}, {made.processes} x {made.threads} threads"
    yield "libraries", ", ".join(f"{name} {version}" for name, version in made.libraries.items())
    yield "trainer", made.trainer_sha256
    if made.changes is not None:
        kept = f"saved in {made.changes.file}" if made.changes.file else "too large to save"
        yield "uncommitted", f"{made.changes.size:,} bytes, {kept}, {made.changes.sha256}"
    for change in made.allowed:
        yield "changed", f"after step {change.step}: {change.field} from {change.before} to {change.after}"


def files_of(run: FoundRun) -> list[dict[str, Any]]:
    """Return the name, size and SHA-256 of each file of a run, on this machine or on the hub.

    The digest is None for a file of more than `MOST_DIGESTED` bytes.
    """
    if isinstance(run, PostedRun):
        return [
            {"name": entry.name, "size": entry.size, "sha256": entry.sha256} for entry in run.detail.artifacts
        ]
    from wander.evals.store.jsonl import refuse_unsafe
    from wander.system.plain_files import open_plain_file, walk_plain

    folder = Path(run.location)
    files: list[dict[str, Any]] = []
    with refuse_unsafe():
        for entry in sorted(walk_plain(folder), key=lambda file: file.name):
            if not entry.path.name.startswith("."):
                sha256 = None
                if entry.size <= MOST_DIGESTED:
                    with open_plain_file(entry.path, below=folder) as file:
                        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                files.append({"name": entry.name, "size": entry.size, "sha256": sha256})
    return files


def file_rows(files: list[dict[str, Any]]) -> list[list[Cell]]:
    """Return the rows of a table of files; the files of a subfolder, such as a checkpoint, share a row."""
    folders: dict[str, list[int]] = {}
    rows: list[list[Cell]] = []
    for file in files:
        folder, inner, _ = file["name"].rpartition("/")
        if inner:
            folders.setdefault(folder, []).append(file["size"])
        else:
            rows.append([file["name"], file["size"], file["sha256"]])
    inner_rows: list[list[Cell]] = [
        [f"{name}/", sum(sizes), counted(len(sizes), "file")] for name, sizes in folders.items()
    ]
    return rows + inner_rows


def describe_standing(run: FoundRun) -> dict[str, Any]:
    """Return a run's digest and location; for a run on the hub also its verification and its owner."""
    from wander_client.errors import NotFound
    from wander_client.hub.posting import files_of, pack_run

    if not isinstance(run, PostedRun):
        try:
            files = files_of(Path(run.location))
        except NotFound:  # a run that has no rollouts yet
            return {"location": run.location, "sha256": None}
        with pack_run(run.manifest, files) as parcel:  # the digest that it would have on a hub
            return {"location": run.location, "sha256": parcel.sha256}
    detail = run.detail
    return {
        "location": detail.url,
        "name": detail.name,
        "sha256": detail.sha256,
        "level": detail.level,
        "level_reason": detail.level_reason,
        "posted_by": detail.posted_by,
        "posted_at": detail.posted_at,
        "not_proved": f"{STATED}: self-reported by the submitter",
    }


def _drop_unset(*rows: tuple[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in rows:
        if isinstance(value, dict) and value:
            yield name, ", ".join(f"{one}={inner}" for one, inner in value.items())
        elif value:
            yield name, str(value)
