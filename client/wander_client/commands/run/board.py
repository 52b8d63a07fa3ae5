"""`wander env board`: how an environment's board is shown."""

from __future__ import annotations

import json
from typing import Annotated, Any

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.failures import validate
from wander_client.names import environment_path, parse_name
from wander_client.terminal.command import Argument, Option


def edit_board(
    environment: Annotated[str, Argument(help="owner/name or owner/name@version")],
    board: Annotated[
        str, Argument(help="name of the board, or its first characters; `wander leaderboard` shows the names")
    ],
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
    wander env board acme/wordle 1f3a5c7e --title "Hard words" --pin
    wander env board acme/wordle 1f3a5c7e --columns rank,model,reward,interval,metric:guesses,level

    Runs on one board have the same task set, arguments, token limit and number of rollouts. The hub creates
    the board when the first complete run of this kind is posted.
    """
    from wander.wire import BoardInfo, BoardSettings

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
        help_hint = "run `wander env board --help` for the possible changes"
        wanted = validate(BoardSettings, before | changes, help_hint)
        path = environment_path(
            shown.owner, shown.name, "versions", shown.version, "boards", shown.board or ""
        )
        after = hub.change("PUT", path, BoardInfo, wanted)
    title = json.dumps(after.title, ensure_ascii=False) if after.title else "none"
    here.output.answer(
        after,
        f"board      {after.board} of {shown.owner}/{shown.name} {shown.version}\n"
        f"title      {title}\npinned     {'yes' if after.pinned else 'no'}",
    )
