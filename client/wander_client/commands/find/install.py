"""`wander install`, `wander env list`, `wander env uninstall`: the environments of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wander_client.context import current
from wander_client.environments.sandbox import BuildFlag, allow_builds, choose_policy
from wander_client.errors import NotFound
from wander_client.names import parse_name
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from wander_client.packages.store import Installed, InstalledRecord


def install(
    environments: Annotated[list[str], Argument(help="owner/name or owner/name@version, one or more")],
    force: Annotated[bool, Option("--force", help="reinstall even if it is installed")] = False,
    no_lock: Annotated[
        bool,
        Option("--no-lock", help="install the newest packages instead of the locked ones; runs record this"),
    ] = False,
    build: BuildFlag = False,
) -> None:
    """Install environments, each in its own virtual environment.

    \b
    wander install admin/tictactoe
    wander install admin/tictactoe@0.1.0 admin/reverse-text

    Wander checks the digest of the wheel and of every package in the version's lock. If anything fails,
    nothing is installed. Wander's own packages and all packages that belong to the environment's owner come
    only from the hub. All other packages come from the index that pip or uv is configured for.

    If you install an environment both with and without its lock, commands use the newer installation.
    Packages are installed from wheels. `--build` also lets uv build packages without a wheel, which runs
    their code with your permissions.
    """
    from wander_client.packages import install as installing
    from wander_client.packages.store import EnvironmentStore

    here = current()
    allow_builds(here, build, choose_policy(None, None, default=bool(here.settings.sandbox)))
    names = [parse_name(text) for text in environments]
    store = EnvironmentStore(here.settings.data_dir, here.output.warn)
    done: list[tuple[Installed, bool]] = []
    with here.hub() as hub:
        for name in names:
            here.output.note(f"installing {name} from {hub.url}")
            done.append(
                installing.install(
                    hub,
                    store,
                    here.settings.cache_dir,
                    name,
                    force=force,
                    no_lock=no_lock,
                    warn=here.output.warn,
                )
            )

    def show() -> None:
        for environment, fresh in done:
            verb = "installed" if fresh else "already installed"
            here.output.line(f"{verb} {environment.name}  sha256:{environment.record.wheel_sha256}")
            here.output.line(f"  {lock_of(environment.record)}  {environment.path}")
            names: dict[str, list[str]] = {}
            for name, origin in sorted(origins_of(environment).items()):
                names.setdefault(origin, []).append(name)
            for origin, packages in sorted(names.items()):
                here.output.line(f"  from {origin}: {', '.join(packages)}")

    rows = [
        {**record_of(environment), "fresh": fresh, "origins": origins_of(environment)}
        for environment, fresh in done
    ]
    here.output.answer(rows, show)
    last = done[-1][0].record
    here.output.next(f"wander eval {last.owner}/{last.name} -m MODEL")


def list_installed() -> None:
    """List the installed environments of all hubs.

    \b
    wander env list
    wander env list --json
    """
    from wander_client.packages.store import EnvironmentStore

    here = current()
    installed = EnvironmentStore(here.settings.data_dir, here.output.warn).all()
    rows = [
        [
            f"{environment.record.owner}/{environment.record.name}",
            environment.record.version,
            environment.record.wheel_sha256[:12],
            environment.record.lock_sha256[:12] if environment.record.lock_sha256 else "none",
            f"{environment.record.installed_at:%Y-%m-%d}",
            environment.record.hub,
        ]
        for environment in installed
    ]
    if not installed and here.output.human:
        here.output.note("no environment is installed")
        here.output.next("wander search")
        return
    columns = ["environment", "version", "sha256", "lock", "installed", "hub"]
    here.output.answer(
        [record_of(environment) for environment in installed],
        lambda: here.output.table(columns, rows, shrink=["hub"], drop=["sha256", "installed", "lock"]),
    )


def uninstall(
    environment: Annotated[str, Argument(help="owner/name (all versions) or owner/name@version")],
) -> None:
    """Remove an installed environment from this machine. Runs stay, and so does the environment on the hub.

    \b
    wander env uninstall admin/tictactoe
    wander env uninstall admin/tictactoe@0.1.0
    """
    from wander_client.packages.store import EnvironmentStore

    here = current()
    name = parse_name(environment)
    store = EnvironmentStore(here.settings.data_dir, here.output.warn)
    matching = [
        item
        for item in store.all()
        if (item.record.owner, item.record.name) == (name.owner, name.name) and name.fits(item.record.version)
    ]
    if not matching:
        raise NotFound(
            f"`{name}` is not installed",
            hint="run `wander env list` to see the installed environments",
            code="not_installed",
        )
    with store.lock(name):
        for item in matching:
            store.remove(item)
    names = ", ".join(str(item.name) for item in matching)
    here.output.answer([record_of(item) for item in matching], f"uninstalled {names}")


def origins_of(installed: Installed) -> dict[str, str]:
    """Return the index or file that each package of an installed environment came from."""
    from wander_client.packages.lock import origins_in
    from wander_client.packages.store import LOCK

    return origins_in((installed.path / LOCK).read_bytes())


def lock_of(record: InstalledRecord) -> str:
    """Describe the lock that an environment was installed with, or why the lock is missing."""
    if record.lock_sha256 is not None:
        return f"lock sha256:{record.lock_sha256}"
    return "lock ignored" if record.unlocked == "chosen" else "without a lock"


def record_of(installed: Installed) -> dict[str, Any]:
    """Return an installed environment as the JSON output shows it."""
    return {**installed.record.values(), "path": str(installed.path)}
