"""`wander play`: play an environment yourself, seeing exactly what a model sees."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.command import command_app
from wander_client.errors import FAILED, Interrupted, NotFound, UsageError
from wander_client.invocation import current
from wander_client.sandboxing import SandboxFlag, SandboxLimits, chosen_policy

if TYPE_CHECKING:
    from typing import Any

    from wander.clients.base import Client
    from wander.sandbox import SandboxPolicy
    from wander.types import Message, Rollout

app = command_app()


@app.command()
def play(
    environment: Annotated[str, typer.Argument(help="owner/name[@version], or ./folder")],
    example: Annotated[int, typer.Option("-e", "--example", min=0, help="position of the example")] = 0,
    split: Annotated[str, typer.Option(help="eval or train")] = "eval",
    seed: Annotated[int, typer.Option(help="the run's seed")] = 0,
    wrap: Annotated[str | None, typer.Option(help="put what you type into this text, at {}")] = None,
    argument: Annotated[list[str] | None, typer.Option("-a", "--arg", help="environment: KEY=VALUE")] = None,
    args: Annotated[str | None, typer.Option("--args", help="environment arguments, a JSON object")] = None,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int | None:
    """Play one example yourself; the terminal shows exactly what a model sees.

    \b
    wander play wander/tictactoe
    wander play wander/tictactoe --example 3 --wrap '<think>.</think><move>{}</move>'

    One line is one answer (write \\\\n for a line break). End of input (Ctrl-D) or /quit leaves the game.

    \b
    Where the environment has tools, they are listed with their arguments, and a line may also be:
      /call NAME key=value ...   call a tool; text with spaces in quotes
      /call NAME {"key": ...}    the same, the arguments as a JSON object
      /tools                     list the tools again
    """
    from wander_client.environments import parse_arguments
    from wander_client.player import PlayerClient

    here = current()
    if split not in ("train", "eval"):
        raise UsageError(f"`--split {split}` is unknown", hint="use `eval` or `train`")
    if wrap is not None and "{}" not in wrap:
        raise UsageError(
            "`--wrap` has no `{}` for what you type", hint="write `--wrap '<answer>{}</answer>'`"
        )
    if here.output.json:
        raise UsageError("`wander play` talks to a person", hint="`wander eval --json` is for programs")
    client = PlayerClient(here.output, wrap=wrap)
    given = parse_arguments(argument or [], args)
    policy = chosen_policy(sandbox, sandbox_limit)
    rollout = asyncio.run(_play(environment, given, split, example, seed, client, policy))
    if client.left:
        raise Interrupted("you left the game; nothing was saved")
    return _show_end(rollout)


async def _play(
    environment: str,
    arguments: dict[str, Any],
    split: str,
    position: int,
    seed: int,
    client: Client,
    sandbox: SandboxPolicy | None,
) -> Rollout:
    from wander_client.environments import open_environment

    async with open_environment(environment, arguments, sandbox=sandbox) as opened:
        rows = await opened.handle.examples("train" if split == "train" else "eval", position, 1)
        if not rows:
            raise NotFound(f"the {split} split has no example {position}", hint="try `--example 0`")
        return await opened.handle.rollout(client, rows[0], run_seed=seed)


def _show_end(rollout: Rollout) -> int | None:
    from wander_client.player import show_message

    output = current().output
    if rollout.failure is not None:
        output.line(f"failed at the {rollout.failure.boundary}: {rollout.failure.message}", style="error")
        return FAILED
    for message in _last_words(rollout):
        show_message(message, output)
    output.line()
    output.line(f"ended: {rollout.stop_reason}, reward {rollout.reward}", style="bold")
    for name, value in rollout.metrics.items():
        output.line(f"  {name:<24} {value:.4g}")
    return None


def _last_words(rollout: Rollout) -> list[Message]:
    """Return what the environment said after the player's last answer."""
    said: list[Message] = []
    for message in reversed(rollout.completion):
        if message.get("role") == "assistant":
            break
        said.append(message)
    return said[::-1]
