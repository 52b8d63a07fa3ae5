"""What tells a suite from a single run. Nothing here reads a suite: plain runs do without those modules."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.errors import ClientError
from wander_client.runs.lookup import SUITE_FILE

if TYPE_CHECKING:
    from wander_client.evaluate.options import CommandFlags


def is_suite(said: Mapping[str, Any], flags: CommandFlags) -> bool:
    """Tell whether the command line means a suite."""
    if flags.resume is not None and (flags.resume / SUITE_FILE).is_file():
        return True
    file = said.get("environment", "").endswith(".toml")
    return file or (flags.resume is None and len(said.get("model", [])) > 1)


def expand_suites(runs_dir: Path, words: Iterable[str], *, incomplete: bool = False) -> list[str]:
    """Return words for runs; the folder of a suite becomes the folders of its runs, in the suite's order.

    Raises `ClientError` for a suite that lacks a run, unless `incomplete` allows that, and for shards.
    """
    found: list[str] = []
    for word in words:
        places = (Path(word), runs_dir / word)
        folder = next((each for each in places if (each / SUITE_FILE).is_file()), None)
        if folder is None:
            found.append(word)
            continue
        from wander_client.runs.shards import require_run
        from wander_client.suites.file import Suite

        require_run(folder)
        runs = Suite.load(folder).command.parts()
        begun = [run for run in runs if (folder / run.folder / "run.json").is_file()]
        if not begun or (len(begun) < len(runs) and not incomplete):
            raise ClientError(
                f"{len(runs) - len(begun)} of {len(runs)} runs of the suite `{folder}` have not started",
                hint=f"play them with `wander eval --resume {shlex.quote(str(folder))}`",
                code="incomplete_suite",
            )
        found += [str(folder / run.folder) for run in begun]
    return found
