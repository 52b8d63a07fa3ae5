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
    environments: Annotated[list[str], Argument(help="one or more of owner/name or owner/name@version")],
    force: Annotated[bool, Option("--force", help="reinstall even if it is installed")] = False,
    no_lock: Annotated[
        bool,
        Option("--no-lock", help="use the newest packages instead of the locked ones (recorded in the run)"),
    ] = False,
    build: BuildFlag = False,
) -> None:
    """Install environments, each into a virtual environment of its own.

    \b
    wander install admin/tictactoe
    wander install admin/tictactoe@0.1.0 admin/reverse-text

    The wheel's digest is checked, the packages are those of the version's lock, each by its digest, and
    nothing is there unless all of it is. What the environment's owner or `wander` offers comes from the hub
    alone, other packages from the index that pip or uv is set to. Of what is installed both ways, other
    commands use the one that was named last. Packages come as wheels: `--build` lets uv build those that have
    none, which runs their code with your rights.
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
        for one, fresh in done:
            said = "installed" if fresh else "already installed"
            here.output.line(f"{said} {one.name}  sha256:{one.record.wheel_sha256}")
            here.output.line(f"  {lock_of(one.record)}  {one.path}")
            names: dict[str, list[str]] = {}
            for name, origin in sorted(origins_of(one).items()):
                names.setdefault(origin, []).append(name)
            for origin, packages in sorted(names.items()):
                here.output.line(f"  from {origin}: {', '.join(packages)}")

    rows = [{**record_of(one), "fresh": fresh, "origins": origins_of(one)} for one, fresh in done]
    here.output.answer(rows, show)
    last = done[-1][0].record
    here.output.next(f"wander eval {last.owner}/{last.name} -m MODEL")


def list_installed() -> None:
    """List installed environments, of all hubs.

    \b
    wander env list
    wander env list --json
    """
    from wander_client.packages.store import EnvironmentStore

    here = current()
    found = EnvironmentStore(here.settings.data_dir, here.output.warn).all()
    rows = [
        [
            f"{one.record.owner}/{one.record.name}",
            one.record.version,
            one.record.wheel_sha256[:12],
            one.record.lock_sha256[:12] if one.record.lock_sha256 else "none",
            f"{one.record.installed_at:%Y-%m-%d}",
            one.record.hub,
        ]
        for one in found
    ]
    if not found and here.output.human:
        here.output.note("no environment is installed")
        here.output.next("wander search")
        return
    columns = ["environment", "version", "sha256", "lock", "installed", "hub"]
    here.output.answer(
        [record_of(one) for one in found],
        lambda: here.output.table(columns, rows, shrink=["hub"], drop=["sha256", "installed", "lock"]),
    )


def uninstall(
    environment: Annotated[str, Argument(help="owner/name (all versions) or owner/name@version")],
) -> None:
    """Remove an installed environment from this machine; runs and the hub keep what they have.

    \b
    wander env uninstall admin/tictactoe
    wander env uninstall admin/tictactoe@0.1.0
    """
    from wander_client.packages.store import EnvironmentStore

    here = current()
    name = parse_name(environment)
    store = EnvironmentStore(here.settings.data_dir, here.output.warn)
    found = [
        one
        for one in store.all()
        if (one.record.owner, one.record.name) == (name.owner, name.name) and name.fits(one.record.version)
    ]
    if not found:
        raise NotFound(
            f"`{name}` is not installed", hint="`wander env list` shows what is", code="not_installed"
        )
    with store.lock(name):
        for one in found:
            store.remove(one)
    said = ", ".join(str(one.name) for one in found)
    here.output.answer([record_of(one) for one in found], f"uninstalled {said}")


def origins_of(installed: Installed) -> dict[str, str]:
    """Return where each package that an environment was installed with comes from."""
    from wander_client.packages.lock import origins_in
    from wander_client.packages.store import LOCK

    return origins_in((installed.path / LOCK).read_bytes())


def lock_of(record: InstalledRecord) -> str:
    """Return what an environment was installed from: `lock sha256:...`, or why there is none."""
    if record.lock_sha256 is not None:
        return f"lock sha256:{record.lock_sha256}"
    return "lock left aside" if record.unlocked == "chosen" else "without a lock"


def record_of(installed: Installed) -> dict[str, Any]:
    """Return the JSON form of an installed environment."""
    return {**installed.record.values(), "path": str(installed.path)}
