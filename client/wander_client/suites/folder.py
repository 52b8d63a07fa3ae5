"""Distinguish suites from single runs, without importing the modules that read suites."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.errors import ClientError
from wander_client.runs.lookup import SUITE_FILE

if TYPE_CHECKING:
    from wander_client.evaluate.options import CommandFlags


def is_suite(options: Mapping[str, Any], flags: CommandFlags) -> bool:
    """Return whether a command line plays a suite."""
    if flags.resume is not None and (flags.resume / SUITE_FILE).is_file():
        return True
    file = options.get("environment", "").endswith(".toml")
    return file or (flags.resume is None and len(options.get("model", [])) > 1)


def expand_suites(runs_dir: Path, words: Iterable[str], *, incomplete: bool = False) -> list[str]:
    """Replace each folder of a suite by the folders of its runs, in the suite's order.

    Raises `ClientError` for shards, and for a suite with missing runs unless `incomplete` is set.
    """
    expanded: list[str] = []
    for word in words:
        candidates = (Path(word), runs_dir / word)
        folder = next((path for path in candidates if (path / SUITE_FILE).is_file()), None)
        if folder is None:
            expanded.append(word)
            continue
        from wander_client.runs.shards import require_run
        from wander_client.suites.file import Suite

        require_run(folder)
        runs = Suite.load(folder).command.parts()
        started = [run for run in runs if (folder / run.folder / "run.json").is_file()]
        if not started or (len(started) < len(runs) and not incomplete):
            raise ClientError(
                f"{len(runs) - len(started)} of {len(runs)} runs of the suite `{folder}` have not started",
                hint=f"play them with `wander eval --resume {shlex.quote(str(folder))}`",
                code="incomplete_suite",
            )
        expanded += [str(folder / run.folder) for run in started]
    return expanded
