"""The checkpoints and models of a training run, each sealed when it is complete.

A checkpoint is a folder of many files, and a process may be killed between any two of them. Its seal is
written last, so a folder without a seal is incomplete and is skipped. The seal contains the digest of every
file, to detect damaged checkpoints, and the length of the run's record.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from wander.errors import RunError
from wander.evals.store import jsonl
from wander.system.plain_files import open_plain_file
from wander.types import Record
from wander.wire.postings import Checkpoint, file_digest

SEAL = "seal.json"
SEALED = "sealed.jsonl"
"""Steps of a run's checkpoints, one per line, so that a missing checkpoint is noticed."""
SAVED = "checkpoints.jsonl"
"""Digests of the weights that a run saved, one per line."""
BATCH = "batch-{}.pt"
"""Rollouts of each process, in a checkpoint between two updates that learn from the same rollouts."""
MODEL, BEST_MODEL = "model", "best"
"""Folders of the final weights and of the best weights."""


class Seal(Record):
    """The digests of the files in a folder that a run saved."""

    step: int
    rollouts_bytes: int = 0
    """Length of the run's uncompressed `rollouts.jsonl` at that step."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of every file, by its path in the folder."""


def read_seal(folder: Path) -> Seal:
    """Return the seal of a folder; raises `RunError` if it cannot be read."""
    seal = jsonl.read_record(folder / SEAL, Seal)
    assert seal is not None, "a folder without a seal is not whole"
    return seal


@dataclass(frozen=True)
class SavedCheckpoint:
    """A sealed checkpoint on the disk."""

    step: int
    path: Path

    def fault(self) -> str | None:
        """Return the problem with its files, in words, or None."""
        try:
            seal = read_seal(self.path)
        except RunError as error:
            return str(error)
        faults = find_faults(self.path, seal.files)
        return next((f"`{self.path / name}` {problem}" for name, problem in faults), None)


def find_faults(folder: Path, files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the files that do not have these digests, each with a description of the problem."""
    for name, sha256 in sorted(files.items()):
        try:
            with open_plain_file(folder / name, below=folder) as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == sha256
            if not same:
                yield name, "is damaged: it changed since it was saved"
        except FileNotFoundError:
            yield name, "is missing"
        except OSError as error:
            yield name, f"cannot be read: {error.strerror}"


def seal_folder(folder: Path, step: int, rollouts_bytes: int = 0) -> None:
    """Seal a folder after all of its files are written."""
    files = {
        path.relative_to(folder).as_posix(): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SEAL
    }
    jsonl.write_record(folder / SEAL, Seal(step=step, rollouts_bytes=rollouts_bytes, files=files))


class SealedStep(Record):
    """A line of `sealed.jsonl`."""

    step: int


def seal_checkpoint(run: Path, step: int, rollouts_bytes: int) -> Path:
    """Seal the checkpoint of a step after all of its files are written; return its folder."""
    folder = run / "checkpoints" / f"checkpoint-{step}"
    seal_folder(folder, step, rollouts_bytes)
    sealed = [*(earlier for earlier in list_sealed_steps(run) if earlier != step), step]
    jsonl.write_records(run / SEALED, (SealedStep(step=number) for number in sealed))
    return folder


def list_sealed_steps(run: Path) -> list[int]:
    """Return the steps of all sealed checkpoints, including removed ones."""
    return [sealed.step for sealed in jsonl.read_records(run / SEALED, SealedStep)]


def list_checkpoints(run: Path) -> list[SavedCheckpoint]:
    """Return the sealed checkpoints of a run, sorted by step."""
    checkpoints = [
        SavedCheckpoint(int(path.name.rpartition("-")[2]), path)
        for path in (run / "checkpoints").glob("checkpoint-*")
        if (path / SEAL).is_file() and path.name.rpartition("-")[2].isdecimal()
    ]
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step)


def checkpoint_to_resume(run: Path, at: int | None = None) -> SavedCheckpoint | None:
    """Check and return the checkpoint to resume a run from; None means the beginning.

    It is the newest checkpoint, or the checkpoint of step `at` (0: the beginning). Raises `RunError` for a
    missing or damaged checkpoint, with a hint about an older intact checkpoint.
    """
    if at == 0:
        return None
    checkpoints = list_checkpoints(run)
    wanted = at if at is not None else max(list_sealed_steps(run), default=None)
    chosen = next(
        (checkpoint for checkpoint in reversed(checkpoints) if at is None or checkpoint.step == at), None
    )
    if chosen is None and wanted is None:
        return None  # the run was stopped before its first checkpoint
    if chosen is None or (wanted is not None and chosen.step < wanted):
        raise _refusal(
            run, f"the checkpoint of step {wanted} in `{run}` was removed", checkpoints, wanted or 0
        )
    fault = chosen.fault()
    if fault is not None:
        raise _refusal(
            run, f"cannot use the checkpoint of step {chosen.step}: {fault}", checkpoints, chosen.step
        )
    return chosen


def _refusal(run: Path, problem: str, checkpoints: list[SavedCheckpoint], before: int) -> RunError:
    """Return the error with an older checkpoint that the run can resume from."""
    sound = next(
        (
            checkpoint.step
            for checkpoint in reversed(checkpoints)
            if checkpoint.step < before and checkpoint.fault() is None
        ),
        0,
    )
    start = f"resume from step {sound}" if sound else "start again, because no older checkpoint is intact"
    return RunError(problem, hint=f"{start}: `wander train --resume {run} --checkpoint {sound}`")


def give_up_later(run: Path, step: int) -> None:
    """Remove the checkpoints after the step that the run resumes from."""
    for path in (run / "checkpoints").glob("checkpoint-*"):
        number = path.name.rpartition("-")[2]
        if number.isdecimal() and int(number) > step:
            shutil.rmtree(path)
    kept = [line for line in read_saved(run) if line.step <= step]
    if (run / SAVED).is_file():
        write_saved(run, kept)
    if (run / SEALED).is_file():
        kept_steps = [SealedStep(step=earlier) for earlier in list_sealed_steps(run) if earlier <= step]
        jsonl.write_records(run / SEALED, kept_steps)


def read_saved(run: Path) -> list[Checkpoint]:
    """Return the weights that a training run saved, oldest first."""
    return jsonl.read_records(run / SAVED, Checkpoint)


def write_saved(run: Path, saved: list[Checkpoint]) -> None:
    """Replace the list of saved weights."""
    jsonl.write_records(run / SAVED, saved)
