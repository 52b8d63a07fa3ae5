"""`wander install`: an exact version into a virtual environment of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from wander_client.context import current
from wander_client.terminal.command import command_app

if TYPE_CHECKING:
    from wander_client.packages.store import Installed, InstalledRecord

app = command_app()


@app.command()
def install(
    environments: Annotated[
        list[str], typer.Argument(help="one or more of owner/name or owner/name@version")
    ],
    force: Annotated[bool, typer.Option("--force", help="reinstall even if it is installed")] = False,
    no_lock: Annotated[
        bool,
        typer.Option(
            "--no-lock", help="use the newest packages instead of the locked ones (recorded in the run)"
        ),
    ] = False,
) -> None:
    """Install environments, each into a virtual environment of its own.

    \b
    wander install wander/tictactoe
    wander install wander/tictactoe@0.1.0 wander/reverse-text

    The wheel's digest is checked, the packages are those of the version's lock, each by its digest, and
    nothing is there unless all of it is. `wander-sdk` comes from the hub, other packages from the index that
    pip or uv is set to. Of what is installed both ways, other commands use the one that was named last.
    """
    from wander_client.names import parse_name
    from wander_client.packages import install as installing
    from wander_client.packages.store import EnvironmentStore

    here = current()
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

    here.output.answer([{**record_of(one), "fresh": fresh} for one, fresh in done], show)
    last = done[-1][0].record
    here.output.next(f"wander eval {last.owner}/{last.name} -m MODEL")


def lock_of(record: InstalledRecord) -> str:
    """Return what an environment was installed from: `lock sha256:...`, or why there is none."""
    if record.lock_sha256 is not None:
        return f"lock sha256:{record.lock_sha256}"
    return "lock left aside" if record.unlocked == "chosen" else "without a lock"


def record_of(installed: Installed) -> dict[str, Any]:
    """Return the JSON form of an installed environment."""
    return {**installed.record.model_dump(mode="json"), "path": str(installed.path)}
