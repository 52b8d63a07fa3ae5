"""`wander new`, `wander env fork`: create an environment from a template or from another environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from wander_client.context import current
from wander_client.names import as_folder, parse_name
from wander_client.packages.scaffold import KINDS, kinds_help, package_name, write_package
from wander_client.terminal.command import Argument, Command, Option
from wander_client.terminal.suggestions import choose

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
    kind: Annotated[str, Option(help="kind of environment (see above)")] = "single-turn",
) -> None:
    """Create an environment package."""
    here = current()
    choose("--kind", kind, KINDS)
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
        f"wander eval {spec} -m scripted:{module}:solver{KINDS[kind].options}",
        f"wander check {spec}",
        f"wander publish {spec}",
    )


app = Command(new, help=_HELP)


def fork(
    environment: Annotated[str, Argument(help="owner/name, or owner/name@version")],
    folder: Annotated[
        Path | None, Argument(help="folder for the source  [default: the environment's name]")
    ] = None,
    owner: Annotated[str | None, Option(help="owner of the fork  [default: you]")] = None,
    name: Annotated[str | None, Option(help="new name; required to fork your own environment")] = None,
) -> None:
    """Create your own environment from a version of an existing environment.

    \b
    wander env fork acme/wordle
    wander env fork acme/wordle@0.2.0 ./my-wordle --owner lab
    wander env fork acme/wordle --name harder-wordle

    Without `--name`, the fork is on the hub immediately, and its page links to the original. With `--name`,
    the fork is on the hub only after you publish it. In both cases, the source is copied to a new folder.
    Change it there, raise `version` in pyproject.toml, and run `wander publish`.
    """
    from wander_client.packages.origins.fork import fork

    here = current()
    forked = fork(here, parse_name(environment), folder, owner=owner, name=name)
    detail, shown = forked.detail, as_folder(forked.folder)
    data = {} if detail is None else detail.model_dump(mode="json")
    label = f"`{name}`" if detail is None else f"{detail.owner}/{detail.name}"
    here.output.answer(
        {**data, "parent": forked.source, "path": str(forked.folder.resolve())},
        f"forked {forked.source} to {label}, with the source in {forked.folder}",
    )
    here.output.next(f"wander check {shown}", f"wander publish {shown}")
