"""`wander env board`: how an environment's boards are shown, and which runs they list."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from wander_client.commands.run.runs import resolve_posted_id
from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.failures import validate
from wander_client.names import environment_path, parse_name, run_path
from wander_client.runs.board_text import protocol_text
from wander_client.terminal.command import Argument, CommandGroup, Option

if TYPE_CHECKING:
    from wander.wire import BoardInfo, BoardSettings, Leaderboard

    from wander_client.hub.api import HubApi
    from wander_client.terminal.output import Cell

app = CommandGroup(
    help="""Change how an environment's boards are shown, or hide runs and publish the reason.

    Runs on one board have the same task set, arguments, token limit and number of rollouts. The hub creates
    the board when the first complete run of this kind is posted. `wander leaderboard` shows it.""",
)

_HELP = "run `wander env board --help` for the possible changes"

Environment = Annotated[str, Argument(help="owner/name or owner/name@version")]
Board = Annotated[
    str,
    Argument(help="name of the board (see `wander env board list`), or its first characters"),
]
RunId = Annotated[str, Argument(help="ID of a posted run, or the run's folder")]


@app.command("list")
def list_boards(environment: Environment) -> None:
    """List the boards of a version: the pinned board first, then the default board of the eval split.

    \b
    wander env board list acme/wordle
    wander env board list acme/wordle@0.3.0 --json
    """
    from wander.wire import BoardInfo

    here = current()
    name = parse_name(environment)
    with here.hub() as hub:
        params: dict[str, Any] = {"version": name.version, "runs": "all", "sort": "posted", "limit": 1}
        first = hub.leaderboard(name.owner, name.name, **params)
    boards = list(first.others)
    if first.rows:
        shown = {
            field: getattr(first, field) for field in BoardInfo.model_fields if field != "last_posted_at"
        }
        boards.insert(0, BoardInfo(**shown, last_posted_at=first.rows[0].posted_at))
    more = first.boards - len(boards)
    rows: list[list[Cell]] = [
        [
            board.board,
            "yes" if board.pinned else "",
            board.runs,
            board.models,
            board.title,
            protocol_text(board),
        ]
        for board in boards
    ]
    titles = ["board", "pinned", "runs", "models", "title", "protocol"]
    here.output.answer(boards, lambda: here.output.table(titles, rows, shrink=["title", "protocol"]))
    if more > 0 and boards:
        here.output.note(
            f"{more} more boards have fewer runs; show one with `wander leaderboard {environment} --board "
            "NAME`"
        )
    if not boards:
        here.output.note(
            f"{first.owner}/{first.name} {first.version} has no board, because it has no complete run"
        )


@app.command()
def edit(
    environment: Environment,
    board: Board,
    title: Annotated[str | None, Option(help="title, up to 100 characters")] = None,
    description: Annotated[str | None, Option(help="description, up to 2,000 characters")] = None,
    columns: Annotated[
        str | None,
        Option(
            help="columns in order, separated by commas, or `usual` for the default columns; an unknown name "
            "prints all names"
        ),
    ] = None,
    pin: Annotated[
        bool | None, Option("--pin/--no-pin", help="show this board before the version's other boards")
    ] = None,
    refuse_rescored: Annotated[
        bool | None,
        Option("--refuse-rescored/--accept-rescored", help="reject or accept runs of the level `rescored`"),
    ] = None,
    fold: Annotated[
        bool | None,
        Option("--fold/--no-fold", help="show runs that share half of their answers as one entry"),
    ] = None,
) -> None:
    """Change a board's title, description, columns, pin or accepted levels. Other settings are kept.

    \b
    wander env board edit acme/wordle 1f3a5c7e --title "Hard words" --pin
    wander env board edit acme/wordle 1f3a5c7e --columns rank,model,reward,interval,metric:guesses,level
    """
    from wander.wire import BoardSettings

    given = {
        "title": title,
        "description": description,
        "pinned": pin,
        "refuses_rescored": refuse_rescored,
        "unfolded": None if fold is None else not fold,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if columns is not None:
        named = [name.strip() for name in columns.split(",") if name.strip()]
        changes["columns"] = None if columns == "usual" else named
    if not changes:
        raise UsageError(
            "no change was given",
            hint="pass `--title`, `--description`, `--columns`, `--pin`, `--refuse-rescored`...",
        )
    here = current()
    name = parse_name(environment)
    with here.hub(login=True) as hub:
        shown = hub.leaderboard(name.owner, name.name, version=name.version, board=board, limit=1)
        before = {
            "title": shown.title,
            "description": shown.description,
            "columns": shown.columns,
            "pinned": shown.pinned,
            "refuses_rescored": shown.refuses_rescored,
            "unfolded": shown.unfolded,
        }
        after = _arrange(hub, shown, validate(BoardSettings, before | changes, _HELP))
    title = json.dumps(after.title, ensure_ascii=False) if after.title else "none"
    here.output.answer(
        after,
        f"board      {after.board} of {shown.owner}/{shown.name} {shown.version}\n"
        f"title      {title}\npinned     {'yes' if after.pinned else 'no'}",
    )


@app.command()
def reset(environment: Environment, board: Board) -> None:
    """Reset a board's title, description, columns and pin.

    \b
    wander env board reset acme/wordle 1f3a5c7e
    """
    from wander.wire import BoardSettings

    here = current()
    name = parse_name(environment)
    with here.hub(login=True) as hub:
        shown = hub.leaderboard(name.owner, name.name, version=name.version, board=board, limit=1)
        after = _arrange(hub, shown, BoardSettings())
    here.output.answer(
        after,
        f"board {after.board} of {shown.owner}/{shown.name} {shown.version} has its default settings again",
    )


def _arrange(hub: HubApi, shown: Leaderboard, wanted: BoardSettings) -> BoardInfo:
    from wander.wire import BoardInfo

    path = environment_path(shown.owner, shown.name, "versions", shown.version, "boards", shown.board or "")
    return hub.change("PUT", path, BoardInfo, wanted)


@app.command()
def hide(run: RunId, reason: Annotated[str, Option(help="reason, shown to everybody")]) -> None:
    """Hide a run from its board, and show the reason.

    \b
    wander env board hide RUN --reason "its author found the answers in the prompt"
    """
    from wander.wire.boards import HiddenRunInfo, HidingReason

    here = current()
    with here.hub(login=True) as hub:
        run_id = resolve_posted_id(hub, run)
        body = validate(HidingReason, {"reason": reason}, _HELP)
        hidden = hub.change("PUT", run_path(run_id, "hiding"), HiddenRunInfo, body)
    here.output.answer(hidden, f"hidden: {hidden.run_id} of {hidden.model}: {hidden.reason}")
    here.output.note(hidden.url)


@app.command()
def unhide(run: RunId) -> None:
    """Show a hidden run on its board again.

    \b
    wander env board unhide RUN
    """

    here = current()
    with here.hub(login=True) as hub:
        run_id = resolve_posted_id(hub, run)
        hub.change("DELETE", run_path(run_id, "hiding"), None)
        detail = hub.run(run_id)
    here.output.answer(detail, f"shown again: {detail.url}")
