"""`wander cache`: the disk space of installed environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wander_client.context import current
from wander_client.terminal.command import CommandGroup, Option

if TYPE_CHECKING:
    from wander_client.packages.store import CachedEnvironment

app = CommandGroup("List and prune the virtual environments of installed environments.")


@app.command(name="list")
def list_cached() -> None:
    """List the virtual environments with their size and last use.

    \b
    wander cache list
    wander cache list --json

    Environments with the same locked packages share a virtual environment. The column `frees` shows how much
    space you gain by removing a virtual environment. This is less than its size, because most of its files
    are links into uv's cache. To empty that cache, run `uv cache prune`.
    """
    from wander_client.packages.store import EnvironmentStore, list_cached

    here = current()
    cached = list_cached(EnvironmentStore(here.settings.data_dir, here.output.warn))
    if not cached and here.output.human:
        here.output.note("no environment is installed")
        here.output.next("wander search")
        return

    def show() -> None:
        columns = ["environment", "version", "sha256", "python", "size", "frees", "last used", "status"]
        here.output.table(columns, [row for entry in cached for row in _rows(entry)])

    total = readable(sum(entry.space.size for entry in cached))
    here.output.note(f"{total} in {here.settings.data_dir}")

    here.output.answer(_data(cached), show)
    if any(entry.state != "ok" for entry in cached):
        here.output.next("wander cache prune")


@app.command()
def prune(
    unused_for: Annotated[
        float | None,
        Option("--unused-for", min=0, help="also remove environments that were not used for this many days"),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="show what would be removed")] = False,
) -> None:
    """Remove broken builds and virtual environments that nothing uses.

    \b
    wander cache prune --dry-run
    wander cache prune --unused-for 30

    If `--unused-for` removes an environment, it is installed again when you next use it. The command does not
    touch runs or an environment that is being installed.
    """
    from datetime import UTC, datetime, timedelta

    from wander_client.packages import store as packages

    here = current()
    store = packages.EnvironmentStore(here.settings.data_dir, here.output.warn)
    age = None if unused_for is None else timedelta(days=unused_for)
    chosen = packages.prunable(packages.list_cached(store), age, datetime.now(UTC))
    gone = chosen if dry_run else packages.prune(store, chosen)
    freed = sum(entry.space.frees for entry in gone)

    def show() -> None:
        for entry in gone:
            here.output.line(f"{_label(entry)}  {readable(entry.space.size)}  {entry.state}")
        verb = "would free" if dry_run else "freed"
        here.output.line(f"{verb} {readable(freed)}" if gone else "nothing to remove")

    here.output.answer({"removed": _data(gone), "freed": freed, "dry_run": dry_run}, show)
    for entry in chosen:
        if entry not in gone:
            here.output.warn(f"{_label(entry)} is in use and was kept")


@app.command(name="dir")
def directory() -> None:
    """Print the folder of the virtual environments.

    \b
    du -sh $(wander cache dir)
    """
    from wander_client.packages.store import EnvironmentStore

    here = current()
    root = EnvironmentStore(here.settings.data_dir, here.output.warn).virtualenvs.root
    here.output.answer({"path": str(root)}, str(root))


def readable(size: int) -> str:
    """Format a number of bytes for people: `0 B`, `1.2 MB`, `34 GB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 9.95 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _rows(entry: CachedEnvironment) -> list[list[str]]:
    from datetime import UTC, datetime

    days = (datetime.now(UTC) - entry.last_used).days
    ago = "today" if days < 1 else "yesterday" if days == 1 else f"{days} days ago"
    tail = [readable(entry.space.size), readable(entry.space.frees), ago, entry.state]
    if not entry.users:
        return [[_label(entry), "", "", "", *tail]]
    shared = ["", "", "same", ""]
    return [
        [
            f"{user.record.owner}/{user.record.name}",
            user.record.version,
            user.record.wheel_sha256[:12],
            user.record.python,
            *(tail if index == 0 else shared),
        ]
        for index, user in enumerate(entry.users)
    ]


def _label(entry: CachedEnvironment) -> str:
    return ", ".join(str(user.name) for user in entry.users) or entry.path.name


def _data(cached: list[CachedEnvironment]) -> list[dict[str, Any]]:
    return [
        {
            "path": str(entry.path),
            "state": entry.state,
            "size": entry.space.size,
            "frees": entry.space.frees,
            "last_used": entry.last_used.isoformat(),
            "environments": [
                {
                    "environment": f"{user.record.owner}/{user.record.name}",
                    "version": user.record.version,
                    "wheel_sha256": user.record.wheel_sha256,
                    "lock_sha256": user.record.lock_sha256,
                    "python": user.record.python,
                    "hub": user.record.hub,
                }
                for user in entry.users
            ],
        }
        for entry in cached
    ]
