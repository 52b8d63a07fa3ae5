"""`wander env play`: play an environment yourself, or play its side against a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits, choose_policy, confines
from wander_client.errors import FAILED, Interrupted, NotFound, UsageError
from wander_client.terminal.command import Argument, EnvironmentArguments, EnvironmentArgumentsJSON, Option
from wander_client.terminal.suggestions import choose

if TYPE_CHECKING:
    from wander.clients.base import Client
    from wander.types import Example, Rollout

    from wander_client.environments.opening import OpenedEnvironment


@dataclass(frozen=True)
class _Game:
    """The options of a game."""

    environment: Annotated[str, Argument(help="owner/name[@version], or ./folder")]
    example: Annotated[
        int | None, Option("-e", "--example", min=0, help="index of the example  [default: 0]")
    ] = None
    split: Annotated[str, Option(help="eval or train")] = "eval"
    seed: Annotated[int, Option(help="seed of the run")] = 0
    against: Annotated[
        str | None, Option(metavar="MODEL", help="play the environment's side against this model")
    ] = None
    opening: Annotated[
        str | None, Option(help="with --against: name of the opening  [default: the first]")
    ] = None
    hints: Annotated[str | None, Option(metavar="MODEL", help="model that answers `/hint`")] = None
    base_url: Annotated[str | None, Option("-b", "--base-url", help="endpoint of the model")] = None
    wrap: Annotated[
        str | None, Option(help="template for your answers, with {} for the text that you type")
    ] = None
    out: Annotated[Path | None, Option(help="folder for the run of this game")] = None
    argument: EnvironmentArguments = None
    args: EnvironmentArgumentsJSON = None
    sandbox: SandboxFlag = None
    sandbox_limit: SandboxLimits = None

    def require_sense(self) -> None:
        """Raise `UsageError` for options that contradict each other."""
        choose("--split", self.split, ("eval", "train"))
        if self.wrap is not None and "{}" not in self.wrap:
            raise UsageError("`--wrap` must contain `{}`", hint="for example: `--wrap '<answer>{}</answer>'`")
        if current().output.json:
            raise UsageError(
                "`wander env play` is interactive and does not support `--json`",
                hint="use `wander eval --json`",
            )
        if self.against is None and self.opening is not None:
            raise UsageError("`--opening` requires `--against`", hint="add `--against MODEL`")
        for option in ("wrap", "hints", "example") if self.against is not None else ():
            if getattr(self, option) is not None:
                raise UsageError(
                    f"`--{option}` cannot be used with `--against`", hint="remove one of the two options"
                )


def play(game: _Game) -> int | None:
    """Play one example yourself. The terminal shows exactly what a model sees.

    \b
    wander env play admin/tictactoe
    wander env play admin/tictactoe --example 3 --wrap '<think>.</think><move>{}</move>'
    wander env play admin/tictactoe --hints scripted:tictactoe.players:optimal
    wander env play admin/tictactoe --against ./checkpoint --opening o-first-4

    Each line is one answer; write \\\\n for a line break. `/undo` takes back the last answer, `/hint` asks
    the model of `--hints`, and `/quit` or Ctrl-D leaves the game. A finished game is saved as a run.

    \b
    If the environment has tools, they are listed with their arguments, and you can also type:
      /call NAME key=value ...   call a tool; put text with spaces in quotes
      /call NAME {"key": ...}    call a tool with a JSON object of arguments
      /tools                     list the tools again

    With `--against`, the model plays and you choose the environment's replies. The environment must declare
    its possible replies. `/hint` then counts how the games after each choice can end.
    """
    import asyncio

    game.require_sense()
    rollout, folder = asyncio.run(_play(game))
    if rollout is None or folder is None:
        raise Interrupted("you left the game; nothing was saved")
    return _show_end(rollout, folder)


async def _play(game: _Game) -> tuple[Rollout | None, Path | None]:
    """Return the rollout and the folder of its run, or None twice if the person left the game."""
    from wander_client.environments.location import parse_arguments
    from wander_client.environments.opening import open_environment
    from wander_client.models.reference import open_model

    arguments = parse_arguments(game.argument or [], game.args)
    policy = choose_policy(
        game.sandbox, game.sandbox_limit, default=confines(current().settings, game.environment)
    )
    async with open_environment(current(), game.environment, arguments, sandbox=policy) as opened:
        name = game.against or game.hints
        if name is None:
            return await _play_model(game, opened, None)
        model = open_model(current(), name, base_url=game.base_url, location=opened.location)
        try:
            side = _play_model if game.against is None else _play_environment
            return await side(game, opened, model)
        finally:
            await model.close()


async def _play_model(
    game: _Game, opened: OpenedEnvironment, hints: Client | None
) -> tuple[Rollout | None, Path | None]:
    from wander_client.play.player import PlayerClient

    client = PlayerClient(current().output, wrap=game.wrap, hints=hints)
    index = game.example or 0
    rows = await opened.handle.examples("train" if game.split == "train" else "eval", index, 1)
    if not rows:
        raise NotFound(f"the {game.split} split has no example {index}", hint="try `--example 0`")
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
            f"`{opened.handle.info.name}` does not declare its possible replies",
            hint="remove `--against` to play the model's side; docs/players.md explains how to declare "
            "replies",
        )
    names = [opening.example_id for opening in openings]
    if game.opening is not None and game.opening not in names:
        raise NotFound(f"there is no opening `{game.opening}`", hint=f"the openings are {', '.join(names)}")
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
    """Save the game as a run with one rollout, and return its folder."""
    from wander.evals.exhaustive import WalkPlan
    from wander.evals.stats.summary import summarize
    from wander.evals.store.folder import RunFolder
    from wander.evals.store.manifest import model_pin, new_manifest

    from wander_client.evaluate.evaluation import new_run_dir
    from wander_client.evaluate.repeating import Game
    from wander_client.runs.own_records import COMMAND_FILE, write_command

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
    path = game.out or new_run_dir(current().settings.runs_dir, opened.location, client.model)
    folder = RunFolder.create(path, manifest)
    game_record = Game(environment=opened.location.exact_name, arguments=dict(opened.pin.arguments))
    write_command(path / COMMAND_FILE, game_record)
    try:
        folder.append(rollout)
        folder.finish(summarize([rollout], expected=1, info=manifest.environment.info))
    finally:
        folder.close()
    return path


def _show_end(rollout: Rollout, folder: Path) -> int | None:
    from wander_client.play.player import show_message

    output = current().output
    if rollout.failure is not None:
        output.line(f"failed at the {rollout.failure.boundary}: {rollout.failure.message}", style="error")
        return FAILED
    if rollout.info.get("line_of_play") is None:
        answers = [
            index for index, message in enumerate(rollout.completion) if message.get("role") == "assistant"
        ]
        for message in rollout.completion[answers[-1] + 1 if answers else 0 :]:
            show_message(message, output)
    output.line()
    output.line(f"ended: {rollout.stop_reason}, reward {rollout.reward}", style="bold")
    for name, value in rollout.metrics.items():
        output.line(f"  {name:<24} {value:.4g}")
    output.next(f"wander view {folder} --rollout 0", f"wander runs replay {folder}")
    return None
