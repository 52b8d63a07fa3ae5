"""What a training run saves: its checkpoints and models, each sealed when it is whole.

A checkpoint is a folder of many files, and a process may be killed between any two of them. Its seal is
written last: a folder without one was never finished and is passed over. The seal names every file with its
digest, so that a damaged checkpoint is refused instead of trained on, and says how long the run's record was.
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
"""The steps of a run's whole checkpoints, one line each: so that it is noticed when one goes missing."""
SAVED = "checkpoints.jsonl"
"""The digests of the weights that a run saved, one line each."""
BATCH = "batch-{}.pt"
"""In a checkpoint between two updates that learn from the same rollouts: these, of each process."""
MODEL, BEST_MODEL = "model", "best"
"""Where the weights of the end are kept, and those that did best."""


class Seal(Record):
    """What a folder that a run saved consists of."""

    step: int
    rollouts_bytes: int = 0
    """Length of the run's plain `rollouts.jsonl` at that step."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of every file, by its path in the folder."""


def read_seal(folder: Path) -> Seal:
    """Return what a whole folder consists of; raises `RunError` if that cannot be read."""
    seal = jsonl.read_record(folder / SEAL, Seal)
    assert seal is not None, "a folder without a seal is not whole"
    return seal


@dataclass(frozen=True)
class SavedCheckpoint:
    """A whole checkpoint on the disk."""

    step: int
    path: Path

    def fault(self) -> str | None:
        """Return what is wrong with its files, in words; None for a sound one."""
        try:
            seal = read_seal(self.path)
        except RunError as error:
            return str(error)
        faults = find_faults(self.path, seal.files)
        return next((f"`{self.path / name}` {problem}" for name, problem in faults), None)


def find_faults(folder: Path, files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield which files have other digests than these, and what is wrong with each, in words."""
    for name, sha256 in sorted(files.items()):
        try:
            with open_plain_file(folder / name, below=folder) as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == sha256
            if not same:
                yield name, "is damaged: its bytes are not those that were saved"
        except FileNotFoundError:
            yield name, "is missing"
        except OSError as error:
            yield name, f"cannot be read: {error.strerror}"


def seal_folder(folder: Path, step: int, rollouts_bytes: int = 0) -> None:
    """Declare a folder whole, once everything that belongs to it is written."""
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
    """Declare the checkpoint of a step whole, once everything that belongs to it is written; return it."""
    folder = run / "checkpoints" / f"checkpoint-{step}"
    seal_folder(folder, step, rollouts_bytes)
    sealed = [*(earlier for earlier in list_sealed_steps(run) if earlier != step), step]
    jsonl.write_records(run / SEALED, (SealedStep(step=number) for number in sealed))
    return folder


def list_sealed_steps(run: Path) -> list[int]:
    """Return the steps of which a run made whole checkpoints, whether they are still there or not."""
    return [sealed.step for sealed in jsonl.read_records(run / SEALED, SealedStep)]


def list_checkpoints(run: Path) -> list[SavedCheckpoint]:
    """Return the whole checkpoints of a run by step."""
    checkpoints = [
        SavedCheckpoint(int(path.name.rpartition("-")[2]), path)
        for path in (run / "checkpoints").glob("checkpoint-*")
        if (path / SEAL).is_file() and path.name.rpartition("-")[2].isdecimal()
    ]
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step)


def checkpoint_to_resume(run: Path, at: int | None = None) -> SavedCheckpoint | None:
    """Return the checkpoint that a run goes on from, checked; None means from its very beginning.

    That is the newest, or the one of step `at` (0: the beginning). Raises `RunError` for one that is missing
    or damaged, and names an older one that is sound.
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
            run, f"`{run}` has no checkpoint of step {wanted}: it was removed", checkpoints, wanted or 0
        )
    fault = chosen.fault()
    if fault is not None:
        raise _refusal(
            run, f"the checkpoint of step {chosen.step} cannot be used: {fault}", checkpoints, chosen.step
        )
    return chosen


def _refusal(run: Path, problem: str, checkpoints: list[SavedCheckpoint], before: int) -> RunError:
    """Say what is wrong, and which older checkpoint the run can go on from."""
    sound = next(
        (
            checkpoint.step
            for checkpoint in reversed(checkpoints)
            if checkpoint.step < before and checkpoint.fault() is None
        ),
        0,
    )
    goes_on = f"goes on from that of step {sound}" if sound else "begins again, no older one is whole"
    return RunError(problem, hint=f"`wander train --resume {run} --checkpoint {sound}` {goes_on}")


def give_up_later(run: Path, step: int) -> None:
    """Forget the checkpoints after a step, from which the run goes on another time."""
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
    """Return which weights a training run saved, in the order in which it did."""
    return jsonl.read_records(run / SAVED, Checkpoint)


def write_saved(run: Path, saved: list[Checkpoint]) -> None:
    """Replace the list of saved weights."""
    jsonl.write_records(run / SAVED, saved)
