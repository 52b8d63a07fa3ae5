"""`wander new`, `wander env fork`: start an environment, anew or from a version of another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from wander_client.context import current
from wander_client.names import as_folder, parse_name
from wander_client.packages.scaffold import KINDS, kinds_help, package_name, write_package
from wander_client.terminal.command import Argument, Command, Option
from wander_client.terminal.suggestions import choose

_HELP = f"""Start an environment package that runs at once: module, README, test.

\b
wander new my-env
wander new games/guess --kind multi-turn

\b
Kinds:
{kinds_help()}
"""


def new(
    path: Annotated[Path, Argument(help="folder to create; the package is named after it")],
    kind: Annotated[str, Option(help="one of the kinds above")] = "single-turn",
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


app = Command(new, help=_HELP)


def fork(
    environment: Annotated[str, Argument(help="owner/name, or owner/name@version")],
    folder: Annotated[
        Path | None, Argument(help="folder for its source  [default: the environment's name]")
    ] = None,
    owner: Annotated[str | None, Option(help="owner of the copy  [default: you]")] = None,
    name: Annotated[str | None, Option(help="a new name, also for one of your own")] = None,
) -> None:
    """Begin an environment of your own with a version of another's, on the hub and on the disk.

    \b
    wander env fork acme/wordle
    wander env fork acme/wordle@0.2.0 ./my-wordle --owner lab
    wander env fork acme/wordle --name harder-wordle

    Its page names where it came from. The source goes to a new folder: change it there, raise `version` in
    pyproject.toml, and publish it. Under a new name it is on the disk alone until it is published.
    """
    from wander_client.packages.origins.fork import fork

    here = current()
    made = fork(here, parse_name(environment), folder, owner=owner, name=name)
    detail, shown = made.detail, as_folder(made.folder)
    data = {} if detail is None else detail.model_dump(mode="json")
    label = f"`{name}`" if detail is None else f"{detail.owner}/{detail.name}"
    here.output.answer(
        {**data, "parent": made.source, "path": str(made.folder.resolve())},
        f"forked {made.source} to {label}, its source to {made.folder}",
    )
    here.output.next(f"wander check {shown}", f"wander publish {shown}")
