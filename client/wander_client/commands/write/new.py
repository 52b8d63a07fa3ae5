"""`wander new`, `wander env fork`: create an environment from a template or from another environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from wander_client.context import current
from wander_client.names import as_folder, parse_name
from wander_client.packages.scaffold import KINDS, KindName, kinds_help, package_name, write_package
from wander_client.terminal.command import Argument, Command, Option
from wander_client.terminal.output import shell_word

_HELP = f"""Create an environment package with a module, a README and a test. It runs without changes.

\b
wander new my-env
wander new games/guess --kind multi-turn

\b
Kinds:
{kinds_help()}
"""


def new(
    path: Annotated[Path, Argument(help="folder to create; the package is named after it")],
    kind: Annotated[KindName, Option(help="kind of environment (see above)")] = "single-turn",
) -> None:
    """Create an environment package."""
    here = current()
    folder = path.expanduser()
    if folder.name in ("", ".."):
        folder = folder.resolve()
    files = write_package(folder, kind)
    name = package_name(folder.name)
    spec = as_folder(folder)
    listing = "\n".join(f"  {folder / file}" for file in files)
    here.output.answer(
        {"name": name, "kind": kind, "path": str(folder.resolve()), "files": [str(file) for file in files]},
        f"created {name}, {'an' if kind in ('mcp', 'rlm') else 'a'} {kind} environment\n{listing}",
    )
    module = name.replace("-", "_")
    here.output.next(
        f"wander eval {shell_word(spec)} -m scripted:{module}:solver{KINDS[kind].options}",
        f"wander check {shell_word(spec)}",
        f"wander publish {shell_word(spec)}",
    )


app = Command(new, help=_HELP)


def fork(
    environment: Annotated[str, Argument(help="owner/name, or owner/name@version")],
    folder: Annotated[
        Path | None, Argument(help="folder for the source  [default: the environment's name]")
    ] = None,
    name: Annotated[str | None, Option(help="new name of the environment")] = None,
) -> None:
    """Copy the source of a version of an environment to a new folder.

    \b
    wander env fork acme/wordle
    wander env fork acme/wordle@0.2.0 ./my-wordle
    wander env fork acme/wordle --name harder-wordle

    Change the source there, and publish it under your own name with `wander publish`.
    """
    from wander_client.packages.origins.fork import fork

    here = current()
    forked = fork(here, parse_name(environment), folder, name)
    shown = as_folder(forked.folder)
    here.output.answer(
        {"source": forked.source, "path": str(forked.folder.resolve())},
        f"copied the source of {forked.source} to {forked.folder}",
    )
    here.output.next(f"wander check {shell_word(shown)}", f"wander publish {shell_word(shown)}")
