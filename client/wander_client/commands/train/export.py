"""`wander env export`: make an environment available to another trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from wander_client.context import current
from wander_client.terminal.command import Argument, EnvironmentArguments, EnvironmentArgumentsJSON, Option
from wander_client.terminal.suggestions import choose


def export(
    environment: Annotated[str, Argument(help="owner/name[@version], or ./folder")],
    to: Annotated[str, Option("--to", metavar="prime-rl|skyrl|tinker", help="the other trainer")],
    out: Annotated[Path, Option("-o", "--out", help="folder of the new adapter package")],
    argument: EnvironmentArguments = None,
    args: EnvironmentArgumentsJSON = None,
) -> None:
    """Write a small adapter package that lets another trainer use an environment.

    \b
    wander env export admin/tictactoe --to skyrl --out adapters/skyrl
    wander env export ./my-env --to tinker --out adapters/tinker -a size=3

    The package depends on `wander-sdk`, the environment and the trainer's interface. Install it next to the
    trainer. For the same completions, it gives the same rewards as `wander eval`.
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
