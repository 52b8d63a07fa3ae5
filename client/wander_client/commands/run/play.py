"""`wander play`: play an environment yourself, or take its side against a model."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.context import current
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits, choose_policy
from wander_client.errors import FAILED, Interrupted, NotFound, UsageError
from wander_client.terminal.command import command_app

if TYPE_CHECKING:
    from typing import Any

    from wander.clients.base import Client
    from wander.sandbox import SandboxPolicy
    from wander.types import Example, Message, Rollout

    from wander_client.environments.location import OpenedEnvironment

app = command_app()


@dataclass(frozen=True)
class _Game:
    """What is played, and by whom."""

    environment: str
    split: str = "eval"
    position: int | None = None
    opening: str | None = None
    seed: int = 0
    wrap: str | None = None
    against: str | None = None
    hints: str | None = None
    base_url: str | None = None
    out: Path | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    sandbox: SandboxPolicy | None = None


@app.command()
def play(
    environment: Annotated[str, typer.Argument(help="owner/name[@version], or ./folder")],
    example: Annotated[
        int | None, typer.Option("-e", "--example", min=0, help="position of the example (0)")
    ] = None,
    split: Annotated[str, typer.Option(help="eval or train")] = "eval",
    seed: Annotated[int, typer.Option(help="seed of the run")] = 0,
    against: Annotated[
        str | None, typer.Option(metavar="MODEL", help="model to play against, from the environment's side")
    ] = None,
    opening: Annotated[
        str | None, typer.Option(help="with --against: name of the opening (the first)")
    ] = None,
    hints: Annotated[str | None, typer.Option(metavar="MODEL", help="model that answers `/hint`")] = None,
    base_url: Annotated[str | None, typer.Option("-b", "--base-url", help="of the model")] = None,
    wrap: Annotated[str | None, typer.Option(help="text around what you type, which replaces {}")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the record of the game")] = None,
    argument: Annotated[list[str] | None, typer.Option("-a", "--arg", help="environment: KEY=VALUE")] = None,
    args: Annotated[str | None, typer.Option("--args", help="environment arguments, a JSON object")] = None,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int | None:
    """Play one example yourself; the terminal shows exactly what a model sees.

    \b
    wander play wander/tictactoe
    wander play wander/tictactoe --example 3 --wrap '<think>.</think><move>{}</move>'
    wander play wander/tictactoe --hints scripted:tictactoe.players:optimal
    wander play wander/tictactoe --against ./checkpoint --opening o-first-4

    One line is one answer (write \\\\n for a line break). `/undo` takes the last one back, `/hint` asks the
    model of `--hints`, end of input (Ctrl-D) or `/quit` leaves the game. A game that ended is kept as a run.

    \b
    Where the environment has tools, they are listed with their arguments, and a line may also be:
      /call NAME key=value ...   call a tool; text with spaces in quotes
      /call NAME {"key": ...}    the same, the arguments as a JSON object
      /tools                     list the tools again

    With `--against` the model plays and you make the environment's choices, where it declares them; `/hint`
    then counts how every line after each choice would end.
    """
    from wander_client.environments.location import parse_arguments

    _require_sense(split, wrap, against, opening, hints, example)
    game = _Game(
        environment,
        split,
        example,
        opening,
        seed,
        wrap,
        against,
        hints,
        base_url,
        out,
        parse_arguments(argument or [], args),
        choose_policy(sandbox, sandbox_limit, default=current().settings.sandbox),
    )
    rollout, folder = asyncio.run(_play(game))
    if rollout is None or folder is None:
        raise Interrupted("you left the game; nothing was saved")
    return _show_end(rollout, folder)


def _require_sense(
    split: str,
    wrap: str | None,
    against: str | None,
    opening: str | None,
    hints: str | None,
    example: int | None,
) -> None:
    """Refuse options that contradict each other."""
    if split not in ("train", "eval"):
        raise UsageError(f"`--split {split}` is unknown", hint="use `eval` or `train`")
    if wrap is not None and "{}" not in wrap:
        raise UsageError(
            "`--wrap` has no `{}` for what you type", hint="write `--wrap '<answer>{}</answer>'`"
        )
    if current().output.json:
        raise UsageError("`wander play` talks to a person", hint="`wander eval --json` is for programs")
    if against is None and opening is not None:
        raise UsageError("`--opening` is for the environment's side", hint="add `--against MODEL`")
    for option, given in (("--wrap", wrap), ("--hints", hints), ("--example", example)):
        if against is not None and given is not None:
            raise UsageError(
                f"`{option}` is for the model's side", hint=f"leave `{option}` or `--against` out"
            )


async def _play(game: _Game) -> tuple[Rollout | None, Path | None]:
    """Return the rollout and the folder of its record; nothing when the person left."""
    from wander_client.environments.location import open_environment
    from wander_client.models.reference import open_model

    async with contextlib.AsyncExitStack() as stack:
        opening = open_environment(current(), game.environment, game.arguments, sandbox=game.sandbox)
        opened = await stack.enter_async_context(opening)
        name = game.against or game.hints
        model: Client | None = None
        if name is not None:
            model = open_model(current(), name, base_url=game.base_url, location=opened.location)
            stack.push_async_callback(model.close)
        if game.against is not None and model is not None:
            return await _play_environment(game, opened, model)
        return await _play_model(game, opened, model)


async def _play_model(
    game: _Game, opened: OpenedEnvironment, hints: Client | None
) -> tuple[Rollout | None, Path | None]:
    from wander_client.play.player import PlayerClient

    client = PlayerClient(current().output, wrap=game.wrap, hints=hints)
    split, place = ("train" if game.split == "train" else "eval"), game.position or 0
    rows = await opened.handle.examples(split, place, 1)  # type: ignore[arg-type]
    if not rows:
        raise NotFound(f"the {split} split has no example {place}", hint="try `--example 0`")
    while True:
        rollout = await opened.handle.rollout(client, rows[0], run_seed=game.seed)
        if client.left:
            return None, None
        if not client.undone:
            return rollout, _keep(game, opened, client, rows[0], rollout)
        client.again()


async def _play_environment(
    game: _Game, opened: OpenedEnvironment, model: Client
) -> tuple[Rollout | None, Path | None]:
    from wander.evals.exhaustive import ConversationMemo

    from wander_client.play.opponent import HELP, Opponent

    openings = await opened.handle.openings()
    if not openings:
        raise UsageError(
            f"`{opened.handle.info.name}` does not declare what it may answer",
            hint="leave `--against` out to play the model's side; docs/exhaustive.md says how to declare it",
        )
    names = [each.example_id for each in openings]
    if game.opening is not None and game.opening not in names:
        raise NotFound(f"there is no opening `{game.opening}`", hint=f"there are {', '.join(names)}")
    chosen = openings[names.index(game.opening) if game.opening else 0]
    output = current().output
    output.note(f"you play the environment's side against {model.model}, opening {chosen.example_id}; {HELP}")
    memo = ConversationMemo(model, game.seed)
    try:
        rollout = await Opponent(opened.handle, memo, chosen, output, seed=game.seed).play()
    finally:
        await memo.settle()
    return (None, None) if rollout is None else (rollout, _keep(game, opened, model, chosen, rollout))


def _keep(game: _Game, opened: OpenedEnvironment, client: Client, example: Example, rollout: Rollout) -> Path:
    """Keep the game as a run of one rollout, and return its folder."""
    from wander.evals.exhaustive import WalkPlan
    from wander.evals.stats.summary import summarise
    from wander.evals.store.folder import RunFolder
    from wander.evals.store.manifest import model_pin, new_manifest

    from wander_client.evaluate.evaluation import new_run_dir

    person_chose = game.against is not None
    manifest = new_manifest(
        environment=opened.pin,
        model=model_pin(client),
        examples=[example],
        sampling=WalkPlan().greedy if person_chose else None,
        split=example.split,
        seed=game.seed,
        kind="play",
        notes="a person made the environment's choices" if person_chose else "a person answered",
    )
    manifest = manifest.model_copy(update={"lines": 1 if person_chose else None})
    place = game.out or new_run_dir(current().settings.runs_dir, opened.location, client.model)
    folder = RunFolder.create(place, manifest)
    try:
        folder.append(rollout)
        folder.finish(summarise([rollout], expected=1))
    finally:
        folder.close()
    return place


def _show_end(rollout: Rollout, folder: Path) -> int | None:
    from wander_client.play.player import show_message

    output = current().output
    if rollout.failure is not None:
        output.line(f"failed at the {rollout.failure.boundary}: {rollout.failure.message}", style="error")
        return FAILED
    if rollout.info.get("line_of_play") is None:
        for message in _last_words(rollout):
            show_message(message, output)
    output.line()
    output.line(f"ended: {rollout.stop_reason}, reward {rollout.reward}", style="bold")
    for name, value in rollout.metrics.items():
        output.line(f"  {name:<24} {value:.4g}")
    output.next(f"wander view {folder} --rollout 0", f"wander replay {folder}")
    return None


def _last_words(rollout: Rollout) -> list[Message]:
    """Return what the environment said after the player's last answer."""
    said: list[Message] = []
    for message in reversed(rollout.completion):
        if message.get("role") == "assistant":
            break
        said.append(message)
    return said[::-1]
