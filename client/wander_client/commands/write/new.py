"""`wander new`: start an environment package that runs at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wander_client.context import current
from wander_client.packages.scaffold import KINDS, kinds_help
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
    from wander_client.packages.scaffold import package_name, write_package

    here = current()
    choose("--kind", kind, KINDS)
    folder = path.expanduser()
    if folder.name in ("", ".."):
        folder = folder.resolve()
    files = write_package(folder, kind)
    name = package_name(folder.name)
    plain = folder.is_absolute() or folder.parts[0] == ".."
    place = str(folder) if plain else f"./{folder}"
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
