"""Find runs by folder, by id, by folder name under the runs folder, or by id on the hub."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wander_client.errors import NotFound, Unavailable, UsageError
from wander_client.runs.found import FoundRun, LocalRun, PostedRun
from wander_client.runs.shards import require_run
from wander_client.terminal.suggestions import did_you_mean

if TYPE_CHECKING:
    from wander.evals.store.folder import RunFolder

    from wander_client.context import Invocation
    from wander_client.terminal.output import Output

SUITE_FILE = "suite.json"
"""File that marks the folder of a suite, which is next to the folders of the suite's runs."""


def local_runs(runs_dir: Path, output: Output) -> Iterator[RunFolder]:
    """Yield the runs on this machine, newest first; warns about folders without a readable run."""
    places = list(_find_runs(runs_dir, output))
    if not places:
        return
    from wander.errors import RunError
    from wander.evals.store.folder import RunFolder

    folders = []
    for place in places:
        try:
            folders.append(RunFolder.open(place))
        except (RunError, OSError) as error:
            output.warn(str(error))
    yield from sorted(folders, key=lambda folder: folder.manifest.started_at, reverse=True)


MOST_RUNS = 100_000
"""Largest number of folders that are searched for runs."""


def _find_runs(runs_dir: Path, output: Output) -> Iterator[Path]:
    """Yield the folders that contain a manifest, including runs inside the folders of suites."""
    seen = 0
    for place in _folders_in(runs_dir, output):
        for folder in (place, *_folders_in(place, output, links=False)):
            seen += 1
            if seen > MOST_RUNS:
                output.warn(
                    f"`{runs_dir}` has more than {MOST_RUNS:,} folders; the remaining folders are ignored"
                )
                return
            if os.path.lexists(folder / "run.json"):
                yield folder


def _folders_in(place: Path, output: Output, *, links: bool = True) -> Iterator[Path]:
    """Yield the folders in a folder; `links` to folders are followed in the user's own runs folder."""
    try:
        with os.scandir(place) as entries:
            yield from [
                Path(entry.path)
                for entry in islice(entries, MOST_RUNS)
                if entry.is_dir(follow_symlinks=links)
            ]
    except FileNotFoundError:
        return
    except OSError as error:
        output.warn(f"cannot read `{place}`: {error.strerror}")


SHORTEST_ID = 6
"""Length of the shortest prefix or suffix of a run's id that is accepted in place of the whole id."""
SHOWN_ID = 8


def short_ids(run_ids: Sequence[str]) -> list[str]:
    """Return the shortest prefixes that distinguish ids, all of the same length, for tables."""
    length = SHOWN_ID
    while length < 26 and len({run_id[:length] for run_id in run_ids}) < len(set(run_ids)):
        length += 1
    return [run_id[:length] for run_id in run_ids]


def run_folder(context: Invocation, word: str | None) -> RunFolder:
    """Return the run that a word names, or the newest run.

    The word is a path, a run's ID, the beginning or end of an ID, or the name of a folder. Raises `NotFound`.
    """
    from wander.evals.store.folder import RunFolder

    if word is not None and Path(word).is_dir():
        require_run(Path(word))
        return RunFolder.open(Path(word))
    runs_dir = context.settings.runs_dir
    folders = list(local_runs(runs_dir, context.output))
    if word is None:
        if not folders:
            raise NotFound(
                f"no runs in `{runs_dir}`", hint="`wander eval` creates runs", code="run_not_found"
            )
        return folders[0]
    exact = [run for run in folders if word.rstrip("/") in (run.manifest.run_id, run.path.name)]
    matching = exact or [
        run
        for run in folders
        if run.path.name.startswith(word.rstrip("/"))
        # Tables show the beginning of an id, the hub's pages its end.
        or (
            len(word) >= SHORTEST_ID
            and (run.manifest.run_id.startswith(word.lower()) or run.manifest.run_id.endswith(word.lower()))
        )
    ]
    if not matching:
        shown = {run.path.name: str(run.path) if "/" in word else run.path.name for run in folders}
        shown |= {run.manifest.run_id: run.manifest.run_id for run in folders}
        near = did_you_mean(Path(word).name, shown, shown=shown)
        raise NotFound(
            f"run `{word}` not found",
            hint=near or f"`wander runs` lists your runs; {SHORTEST_ID} characters of an ID are enough",
            code="run_not_found",
        )
    if len(matching) > 1:
        names = "\n".join(f"{run.manifest.run_id}  {run.path}" for run in matching[:10])
        raise UsageError(
            f"`{word}` matches {len(matching)} runs", hint="pass more characters of the ID", detail=names
        )
    return matching[0]


def resumable_folder(context: Invocation, word: Path) -> Path:
    """Return the folder of the run that `--resume` names: a folder, or any name that `run_folder` accepts.

    Raises `RunError` if the folder contains links, because a resumed run would write through them.
    """
    from wander.evals.store.folder import require_plain_folder

    require_run(word)
    folder = word if word.is_dir() else run_folder(context, str(word)).path
    require_plain_folder(folder)
    return folder


_RESUMED_BY = {"evaluation": "eval", "exhaustive": "eval", "training": "train"}


def require_same_folder(resumed: Path, out: Path | None) -> None:
    """Raise `UsageError` if `--out` names another folder than the resumed run's."""
    if out is not None and out.resolve() != resumed.resolve():
        raise UsageError(f"`--out {out}`: the resumed run is in `{resumed}`", hint="remove `--out`")


def require_kind(folder: Path, kind: Literal["evaluation", "training"]) -> None:
    """Raise `NotFound` if the folder contains a run of another kind; the hint tells how to resume it."""
    from wander.evals.store.folder import RunFolder

    actual = RunFolder.open(folder).manifest.kind
    if actual != kind:
        article = "an" if actual[0] in "aeiou" else "a"
        command = _RESUMED_BY.get(actual)
        raise NotFound(
            f"`{folder}` is {article} {actual} run",
            hint=command and f"to resume it, run `wander {command} --resume {folder}`",
            code="no_run",
        )


def find_run(context: Invocation, word: str | None) -> FoundRun:
    """Return the run that a word names, from this machine or else from the hub."""
    try:
        folder = run_folder(context, word)
    except NotFound as missing:
        if word is None or "/" in word:
            raise
        with context.hub() as hub:
            try:
                return PostedRun(context, hub.run(word))
            except (NotFound, Unavailable) as error:
                known = isinstance(error, NotFound) and error.code != "run_ambiguous"
                if known or "did you mean" in (missing.hint or ""):
                    raise missing from None
                if error.code == "hub_unreachable":
                    raise Unavailable(
                        f"run `{word}` is not on this machine, and the hub `{hub.url}` cannot be reached",
                        hint=error.hint,
                        code=error.code,
                        detail=error.detail,
                    ) from None
                raise
    if folder.torn:
        context.output.warn(folder.torn)
    return LocalRun(folder)
