"""`wander cache`: what installed environments take of the disk, and making room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wander_client.context import current
from wander_client.terminal.command import CommandGroup, Option

if TYPE_CHECKING:
    from wander_client.packages.store import CachedEnvironment

app = CommandGroup("See and prune the virtual environments of installed environments.")


@app.command(name="list")
def list_cached() -> None:
    """List the virtual environments with their size and last use.

    \b
    wander cache list
    wander cache list --json

    Environments that are locked to the same packages share one. `frees` is what removing it gives back: most
    files are links into the cache of uv, which `uv cache prune` empties.
    """
    from wander_client.packages.store import EnvironmentStore, list_cached

    here = current()
    found = list_cached(EnvironmentStore(here.settings.data_dir, here.output.warn))
    if not found and here.output.human:
        here.output.note("nothing is installed")
        here.output.next("wander search")
        return

    def show() -> None:
        columns = ["environment", "version", "sha256", "python", "size", "frees", "last used", "state"]
        here.output.table(columns, [row for each in found for row in _rows(each)])
        total = readable(sum(each.space.size for each in found))
        here.output.note(f"{total} in {here.settings.data_dir}")

    here.output.answer(_data(found), show)
    if any(each.state != "ok" for each in found):
        here.output.next("wander cache prune")


@app.command()
def prune(
    unused_for: Annotated[
        float | None,
        Option("--unused-for", min=0, help="also remove what was unused for this many days"),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="show what would be removed")] = False,
) -> None:
    """Remove broken builds and virtual environments that nothing uses.

    \b
    wander cache prune --dry-run
    wander cache prune --unused-for 30

    `--unused-for` also removes environments that were not used for that many days; they are installed again
    when they are needed. Runs stay, and so does what is being installed at the moment.
    """
    from datetime import UTC, datetime, timedelta

    from wander_client.packages import store as packages

    here = current()
    store = packages.EnvironmentStore(here.settings.data_dir, here.output.warn)
    age = None if unused_for is None else timedelta(days=unused_for)
    chosen = packages.prunable(packages.list_cached(store), age, datetime.now(UTC))
    gone = chosen if dry_run else packages.prune(store, chosen)
    freed = sum(each.space.frees for each in gone)

    def show() -> None:
        for each in gone:
            here.output.line(f"{_label(each)}  {readable(each.space.size)}  {each.state}")
        verb = "would free" if dry_run else "freed"
        here.output.line(f"{verb} {readable(freed)}" if gone else "nothing to remove")

    here.output.answer({"removed": _data(gone), "freed": freed, "dry_run": dry_run}, show)
    for each in chosen:
        if each not in gone:
            here.output.warn(f"{_label(each)} is in use and stays")


@app.command(name="dir")
def directory() -> None:
    """Print the folder of the virtual environments.

    \b
    du -sh $(wander cache dir)
    """
    from wander_client.packages.store import EnvironmentStore

    here = current()
    place = EnvironmentStore(here.settings.data_dir, here.output.warn).virtualenvs.root
    here.output.answer({"path": str(place)}, str(place))


def readable(size: int) -> str:
    """Return a number of bytes as people read it: `0 B`, `1.2 MB`, `34 GB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 9.95 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _rows(each: CachedEnvironment) -> list[list[str]]:
    from datetime import UTC, datetime

    days = (datetime.now(UTC) - each.last_used).days
    ago = "today" if days < 1 else "yesterday" if days == 1 else f"{days} days ago"
    tail = [readable(each.space.size), readable(each.space.frees), ago, each.state]
    if not each.users:
        return [[_label(each), "", "", "", *tail]]
    shared = ["", "", "same", ""]
    return [
        [
            f"{one.record.owner}/{one.record.name}",
            one.record.version,
            one.record.wheel_sha256[:12],
            one.record.python,
            *(tail if at == 0 else shared),
        ]
        for at, one in enumerate(each.users)
    ]


def _label(each: CachedEnvironment) -> str:
    return ", ".join(str(one.name) for one in each.users) or each.path.name


def _data(found: list[CachedEnvironment]) -> list[dict[str, Any]]:
    return [
        {
            "path": str(each.path),
            "state": each.state,
            "size": each.space.size,
            "frees": each.space.frees,
            "last_used": each.last_used.isoformat(),
            "environments": [
                {
                    "environment": f"{one.record.owner}/{one.record.name}",
                    "version": one.record.version,
                    "wheel_sha256": one.record.wheel_sha256,
                    "lock_sha256": one.record.lock_sha256,
                    "python": one.record.python,
                    "hub": one.record.hub,
                }
                for one in each.users
            ],
        }
        for each in found
    ]
