"""Merges the shards of a run into one run. All shards with the same pins are needed, or nothing is written.

The lines of the merged run are those of the shards, byte for byte, in the order of the manifest. For a
rollout that was played repeatedly, only the line that counts is kept. Merging the same shards again gives the
same run with the same id. A shard whose lines contradict its `summary.json` is rejected, because one of them
was changed.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from itertools import pairwise
from operator import add, itemgetter
from pathlib import Path

from wander.errors import RunError, Wording, name_option
from wander.evals.stats.summary import RunningSummary, summarize_run
from wander.evals.store.examples import RolloutOrder
from wander.evals.store.folder import SUMMARY, LinesInOrder, RunFolder, disk_errors, unrecordable
from wander.evals.store.jsonl import make_folder
from wander.evals.store.manifest import differences_in_words, find_differing_pins, run_id_of
from wander.types import Rollout, Usage
from wander.wire import RunManifest, RunSummary, Spending
from wander.wire.run_record import Shard

_AGAIN = "run this shard again in a new folder"


def merge_shards(
    folders: Sequence[RunFolder], target: Path, files: Mapping[str, bytes] | None = None
) -> tuple[RunManifest, RunSummary]:
    """Write the merged run of these shards to a new folder, with extra `files` by name, completely or not at
    all.

    Raises `RunError` if a folder is not a shard, if shards belong to different runs or versions, if a shard
    is missing, duplicated, incomplete or changed, and if the target already exists.
    """
    if not folders:
        raise RunError("there is nothing to merge", hint="name the folders of all shards")
    shards = sorted(folders, key=lambda shard: (shard_of(shard).of, shard_of(shard).first))
    first = shards[0].manifest
    for other in shards[1:]:
        _require_same(shards[0], other)
    _require_all(shards)
    if target.exists():
        raise RunError(f"`{target}` already exists", hint="choose another folder with " + name_option("out"))
    require_outside(target, [shard.path for shard in shards])
    used = [shard.manifest.endpoints for shard in shards if shard.manifest.endpoints is not None]
    manifest = first.model_copy(
        update={
            "shard": None,
            "run_id": _run_id(shards),
            "started_at": min(shard.manifest.started_at for shard in shards),
            "endpoints": reduce(add, used) if used else None,
            "spending": _spending(shards),
        }
    )
    ended = max(shard.manifest.ended_at for shard in shards if shard.manifest.ended_at is not None)
    with make_folder(target) as place:
        folder = RunFolder.create(place, manifest)
        try:
            summary = summarize_run(manifest, _append_all(_in_whole(shards, manifest), folder))
            folder.finish(summary, ended_at=ended)
        finally:
            folder.close()
        with disk_errors(place):
            for name, content in (files or {}).items():
                (place / name).write_bytes(content)
    return folder.manifest, summary


def _append_all(records: Iterable[tuple[Rollout, bytes]], folder: RunFolder) -> Iterator[Rollout]:
    """Append lines and yield their rollouts, so that they need not be read from the file again."""
    for rollout, line in records:
        folder.append_line(line.removesuffix(b"\n") + b"\n")
        yield rollout


def require_outside(target: Path, folders: Iterable[Path]) -> None:
    """Raise `RunError` if the target is inside a shard's folder."""
    for folder in folders:
        if target.resolve().is_relative_to(folder.resolve()):
            raise RunError(
                f"`{target}` is inside the shard `{folder}`",
                hint="choose a folder next to the shards with " + name_option("out"),
            )


def shard_of(folder: RunFolder) -> Shard:
    """Return the shard that a folder contains. Raises `RunError` if it contains a whole run."""
    if folder.manifest.shard is None:
        raise RunError(
            f"`{folder.path}` is a whole run, not a shard",
            hint="leave it out; create shards with "
            + Wording("`wander eval --set shard=0/8`", '`shard="0/8"`'),
        )
    return folder.manifest.shard


def require_tiles(shards: Sequence[tuple[str, Shard]], *, what: str = "the run") -> None:
    """Raise `RunError` unless the named shards cover the whole run exactly once."""
    of = shards[0][1].of
    for name, shard in shards:
        if shard.of != of:
            raise RunError(
                f"`{shards[0][0]}` is one of {of} shards, and `{name}` is one of {shard.of}",
                hint="merge only shards of a run that was divided into the same number of shards",
            )
    parts = sorted((shard.first, shard.end, name) for name, shard in shards)
    for before, after in pairwise(parts):
        if after[0] < before[1]:
            raise RunError(
                f"shard {after[0]}/{of} is in `{before[2]}` and in `{after[2]}`", hint="leave out one of them"
            )
    there = {number for first, end, _ in parts for number in range(first, end)}
    missing = [f"{number}/{of}" for number in range(of) if number not in there]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        subject, verb = ("shards", "are") if len(missing) > 1 else ("shard", "is")
        raise RunError(
            f"{subject} {shown} of {what} {verb} missing",
            hint="run it like the other shards, with "
            + Wording(f"`--set shard={missing[0]}`", f'`shard="{missing[0]}"`')
            + ", then merge all shards",
        )


def _require_same(first: RunFolder, other: RunFolder) -> None:
    """Raise `RunError` if shards belong to different runs or were played with different versions."""
    whole = (shard.manifest.model_copy(update={"shard": None}) for shard in (first, other))
    if differing := find_differing_pins(*whole):
        raise RunError(
            f"`{first.path}` and `{other.path}` are not shards of the same run: "
            f"they differ in {differences_in_words(differing)}",
            hint="run all shards with the same command, except for `shard` and " + name_option("out"),
        )
    before, after = first.manifest.platform, other.manifest.platform
    versions: dict[str, tuple[str | None, str | None]] = {"wander": (before.wander, after.wander)}
    versions |= {
        name: (before.packages.get(name), after.packages.get(name))
        for name in before.packages.keys() | after.packages.keys()
    }
    for name, (here, there) in sorted(versions.items()):
        if here != there:
            raise RunError(
                f"`{first.path}` was played with {name} {here or 'not installed'}, "
                f"and `{other.path}` with {there or 'without it'}",
                hint="install the same version on all machines, and run the other shards again",
            )


def _require_all(shards: Sequence[RunFolder]) -> None:
    require_tiles([(str(shard.path), shard_of(shard)) for shard in shards])
    for shard in shards:
        if shard.manifest.ended_at is None:
            raise RunError(
                f"shard {shard.manifest.shard} in `{shard.path}` is not complete",
                hint=_resume_hint(shard),
            )


def _resume_hint(shard: RunFolder) -> str:
    resume = name_option("resume", str(shard.path), command="wander eval")
    return "run " + resume + ", then merge again"


def _run_id(shards: Sequence[RunFolder]) -> str:
    """Return a run id derived from those of the shards."""
    ids = "\n".join(shard.manifest.run_id for shard in shards)
    earliest = min(shard.manifest.started_at for shard in shards)
    tail = hashlib.sha256(ids.encode()).digest()[:10]
    return run_id_of(int(earliest.timestamp() * 1000), tail)


def _spending(shards: Sequence[RunFolder]) -> Spending | None:
    """Return the total spending of all shards, without limits, because each shard had its own."""
    parts = [shard.manifest.spending for shard in shards if shard.manifest.spending is not None]
    if not parts:
        return None
    prices = parts[0].prices if all(part.prices == parts[0].prices for part in parts) else None
    usage = sum((part.usage for part in parts), Usage())
    costs = [part.usd for part in parts if part.usd is not None]
    return Spending(usage=usage, usd=sum(costs) if len(costs) == len(parts) else None, prices=prices)


def _in_whole(shards: Sequence[RunFolder], manifest: RunManifest) -> Iterator[tuple[Rollout, bytes]]:
    """Yield every rollout with its line, in the order of the manifest."""
    order = RolloutOrder(manifest.example_ids, manifest.rollouts_per_example)
    before: Rollout | None = None
    with ExitStack() as opened:
        parts = [_placed(shard, opened.enter_context(shard.in_order()), order, manifest) for shard in shards]
        for _, rollout, line, shard in heapq.merge(*parts, key=itemgetter(0)):
            if before and before.example_id == rollout.example_id and before.seed != rollout.seed:
                raise RunError(
                    f"`{shard.path}` was changed: rollouts `{rollout.example_id}/{rollout.index}` and "
                    f"`{before.example_id}/{before.index}` of the same example have different seeds",
                    hint=_AGAIN,
                )
            before = rollout
            yield rollout, line


def _placed(
    shard: RunFolder, lines: LinesInOrder, order: RolloutOrder, manifest: RunManifest
) -> Iterator[tuple[int, Rollout, bytes, RunFolder]]:
    """Yield the rollouts of a shard, each preceded by its position in the whole run."""
    if len(lines) != (expected := shard.manifest.expected_rollouts):
        raise RunError(
            f"`{shard.path}` contains {len(lines):,} of the {expected:,} rollouts of its shard",
            hint=_resume_hint(shard),
        )
    running = RunningSummary(manifest.environment.info)
    for rollout, line in lines.records():
        place = _place(rollout, shard, order, manifest)
        running.add(rollout)
        yield place, rollout, line, shard
    require_unchanged(shard, running.summary(expected=expected))


def require_unchanged(shard: RunFolder, computed: RunSummary) -> None:
    """Raise `RunError` if the summary of a shard does not match its rollouts."""
    stored = shard.summary()
    if stored is None:
        return
    for name in RunSummary.model_fields:
        # A summary that an older release wrote lacks the fields that came later.
        if name in stored.model_fields_set and getattr(stored, name) != getattr(computed, name):
            raise RunError(
                f"`{shard.path}` was changed: its rollouts and its `{SUMMARY}` disagree about `{name}`",
                hint=f"{_AGAIN}; if a resumed session was killed, delete that outdated file instead",
            )


def _place(rollout: Rollout, shard: RunFolder, order: RolloutOrder, manifest: RunManifest) -> int:
    """Return the position of a rollout in the whole run.

    Raises `RunError` if it is not part of this shard.
    """
    number = order.find(rollout.key)
    if number is None or not shard_of(shard).takes(number // manifest.played_together):
        raise RunError(
            f"`{shard.path}` contains rollout `{rollout.example_id}/{rollout.index}` of another shard",
            hint=_AGAIN,
        )
    if (problem := unrecordable(rollout)) is not None:
        raise RunError(
            f"`{shard.path}` was changed: rollout `{rollout.example_id}/{rollout.index}`: {problem}",
            hint=_AGAIN,
        )
    return number
