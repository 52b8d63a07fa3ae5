"""The folder that contains a run's shards while an engine plays them; it is next to the run's own folder."""

from __future__ import annotations

import shlex
from pathlib import Path

from wander_client.errors import UsageError, name_option

SHARDS_FILE = "shards"
"""File with the number of shards of a run in progress."""
_ENDING = ".shards"


def parts_of(out: Path) -> Path:
    """Return the folder for the shards of a run or suite that is played into `out`."""
    return out.with_name(f"{out.name}{_ENDING}")


def run_of(place: Path) -> Path:
    """Return the folder of the run that these shards will become."""
    return place.with_name(place.name.removesuffix(_ENDING))


def has_begun(out: Path) -> bool:
    """Return whether there are shards of a run that can be resumed."""
    return _holds_shards(parts_of(out)) and not out.exists()


def require_run(folder: Path) -> None:
    """Raise `UsageError` if a folder contains a run's shards rather than a run."""
    if folder.name.endswith(_ENDING) and _holds_shards(folder):
        raise UsageError(
            f"`{folder}` contains the shards of a run, not a whole run", hint=_how_to_end(run_of(folder))
        )


def require_no_shards(out: Path) -> None:
    """Raise `UsageError` if a folder contains the shards of a run that an engine has not finished."""
    if _holds_shards(parts_of(out)):
        raise UsageError(
            f"`{parts_of(out)}` contains the shards of `{out}`, which is not finished",
            hint="choose another folder with " + name_option("out") + ", or " + _how_to_end(out),
        )


def require_free(out: Path) -> None:
    """Raise `UsageError` if an output folder already exists; the hint mentions shards next to it."""
    if out.exists():
        hint = "choose another folder with " + name_option("out")
        if _holds_shards(parts_of(out)):
            hint = _how_to_end(out)
        raise UsageError(f"`{out}` already exists", hint=hint)


def _holds_shards(place: Path) -> bool:
    return (place / SHARDS_FILE).is_file()


def _how_to_end(out: Path) -> str:
    """Return a hint for completing a run from its shards: resume it, or merge them if `out` exists."""
    if not out.exists():
        return "resume it with " + name_option("resume", str(out), command="wander eval")
    place = shlex.quote(str(parts_of(out)))
    return f"merge the shards into a run: `wander runs merge {place}/[0-9]* --out NEW`"
