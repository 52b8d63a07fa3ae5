"""`wander new`, `wander env fork`: start an environment, anew or from a version of another."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from wander_client.context import current
from wander_client.names import as_folder, parse_name
from wander_client.packages.scaffold import KINDS, kinds_help, package_name, require_free, write_package
from wander_client.terminal.command import command_app
from wander_client.terminal.suggestions import choose

app = command_app()

HELP = f"""Start an environment package that runs at once: module, README, test.

\b
wander new my-env
wander new games/guess --kind multi-turn

\b
Kinds:
{kinds_help()}
"""


@app.command(help=HELP)
def new(
    path: Annotated[Path, typer.Argument(help="folder to create; the package is named after it")],
    kind: Annotated[str, typer.Option(help="one of the kinds above")] = "single-turn",
) -> None:
    """Start an environment package that runs at once."""
    here = current()
    choose("--kind", kind, KINDS)
    folder = path.expanduser()
    if folder.name in ("", ".."):
        folder = folder.resolve()
    files = write_package(folder, kind)
    name = package_name(folder.name)
    place = as_folder(folder)
    listing = "\n".join(f"  {folder / file}" for file in files)
    here.output.answer(
        {"name": name, "kind": kind, "path": str(folder.resolve()), "files": [str(file) for file in files]},
        f"made {name}, {'an' if kind in ('mcp', 'rlm') else 'a'} {kind} environment\n{listing}",
    )
    module = name.replace("-", "_")
    here.output.next(
        f"wander eval {place} -m scripted:{module}:solver{KINDS[kind].options}",
        f"wander check {place}",
        f"wander publish {place}",
    )


def fork(
    environment: Annotated[str, typer.Argument(help="owner/name, or owner/name@version")],
    folder: Annotated[
        Path | None, typer.Argument(help="folder for its source  [default: the environment's name]")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="owner of the copy  [default: you]")] = None,
) -> None:
    """Begin an environment of your own with a version of another's, on the hub and on the disk.

    \b
    wander env fork acme/wordle
    wander env fork acme/wordle@0.2.0 ./my-wordle --owner lab

    Its page names where it came from. The source goes to a new folder: change it there, raise `version` in
    pyproject.toml, and publish it.
    """
    from wander.wire.changes import NewPlace

    from wander_client.hub import administration
    from wander_client.packages.origins.published import bring_version

    here = current()
    name = parse_name(environment)
    place = (folder or Path(name.name)).expanduser()
    require_free(place, f"name another folder: `wander env fork {name} FOLDER`")
    place.parent.mkdir(parents=True, exist_ok=True)
    with (
        here.hub(login=True) as hub,
        tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as work,
    ):
        target = owner or hub.whoami().user
        version = (
            hub.version(name.owner, name.name, name.version)
            if name.version
            else hub.environment(name.owner, name.name).latest
        )
        source = bring_version(hub, here.settings.cache_dir, version, Path(work))  # before the hub changes
        detail = administration.fork(hub, name, NewPlace(owner=target.lower(), version=version.version))
        source.replace(place)
    label, shown = f"{detail.owner}/{detail.name}", as_folder(place)
    here.output.answer(
        {**detail.model_dump(mode="json"), "path": str(place.resolve())},
        f"forked {detail.parent or name} to {label}, its source to {place}",
    )
    here.output.next(f"wander check {shown}", f"wander publish {shown}")
