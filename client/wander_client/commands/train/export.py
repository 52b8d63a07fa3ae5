"""`wander env export`: have another trainer play an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from wander_client.context import current
from wander_client.terminal.command import Argument, Option
from wander_client.terminal.suggestions import choose


def export(
    environment: Annotated[str, Argument(help="owner/name[@version], or ./folder")],
    to: Annotated[str, Option("--to", metavar="prime-rl|skyrl|tinker", help="trainer to write for")],
    out: Annotated[Path, Option("-o", "--out", help="folder for the adapter's package")],
    argument: Annotated[list[str] | None, Option("-a", "--arg", help="environment: KEY=VALUE")] = None,
    args: Annotated[str | None, Option("--args", help="environment arguments, a JSON object")] = None,
) -> None:
    """Write a small package by which another trainer plays an environment.

    \b
    wander env export admin/tictactoe --to skyrl --out adapters/skyrl
    wander env export ./my-env --to tinker --out adapters/tinker -a size=3

    It depends on `wander-sdk`, the environment and the trainer's own interface, is installed beside the
    trainer, and gives the rewards of `wander eval` for the same completions.
    """
    from wander_client.environments.location import locate, parse_arguments
    from wander_client.training.export import TRAINERS, write_adapter

    choose("--to", to, TRAINERS)
    here = current()
    location = locate(here, environment)
    owner = location.installed.record.owner if location.installed else "OWNER"
    index = f"{here.settings.hub.rstrip('/')}/{owner}/index/"
    written = write_adapter(location, parse_arguments(argument or [], args), to, out, index)
    here.output.answer(
        {"out": str(out), "files": [str(file) for file in written]},
        f"{out}: {', '.join(str(file) for file in written)}",
    )
    here.output.next(f"pip install --index-url {index} {out}")
