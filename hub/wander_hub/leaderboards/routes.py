"""The API of leaderboards."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Query
from sqlalchemy.orm import Session
from starlette.responses import Response
from wander.wire import BoardInfo, BoardSettings, Leaderboard, VerificationLevel
from wander.wire.boards import HiddenRunInfo, HidingReason, csv_table

from wander_hub.environments import service as environments
from wander_hub.http.boundary import BaseUrl, ForManager, HubStorage, ReadSession, audited
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter
from wander_hub.leaderboards import curation, repository, service
from wander_hub.leaderboards.filters import BoardFilter, BoardSort, Showing
from wander_hub.leaderboards.strata import with_stratum
from wander_hub.runs import service as run_service

router = HubRouter(prefix="/api/v1", tags=["leaderboards"])

MOST_ROWS = 200
_CSV_ROWS = 10_000
_BOARD = "/environments/{owner}/{name}/leaderboard"
Version = Annotated[str | None, Query(max_length=100)]
TaskSet = Annotated[str | None, Query(max_length=64, description="digest, or the start of it")]
Stratum = Annotated[
    int | None,
    Query(ge=-(2**31), le=2**31, description="also return each row's rewards on this stratum of `strata`"),
]
BoardName = Annotated[str | None, Query(max_length=64, description="name, as in `others`")]


def board_filter(
    runs: Annotated[
        Showing, Query(description="the counting run of each model and account, or all runs")
    ] = "best",
    sort: Annotated[
        BoardSort,
        Query(description="best or newest first, or by rank and then fewest tokens or cheapest first"),
    ] = "reward",
    level: Annotated[VerificationLevel, Query(description="minimum level")] = "unverifiable",
    model: Annotated[str, Query(max_length=300, description="part of the name, in any letter case")] = "",
    since: Annotated[datetime | None, Query(description="earliest post; UTC without a zone")] = None,
    until: Annotated[datetime | None, Query(description="end of the posts, exclusive")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 50,
    cursor: Annotated[str | None, Query(max_length=400)] = None,
) -> BoardFilter:
    """Return the filter of a request."""
    return BoardFilter(runs, sort, level, model, _aware(since), _aware(until), limit, cursor)


Wanted = Annotated[BoardFilter, Depends(board_filter)]


@dataclass(frozen=True)
class AskedBoard:
    """The board that a request asks for."""

    session: ReadSession
    storage: HubStorage
    base_url: BaseUrl
    owner: str
    name: str
    wanted: Wanted
    version: Version = None
    task_set: TaskSet = None
    board: BoardName = None
    stratum: Stratum = None

    def rank(self, *, limit: int | None = None) -> Leaderboard:
        """Return the board with its rows; `limit` overrides the request's limit."""
        board = service.leaderboard(
            self.session,
            environments.find(self.session, self.owner, self.name),
            self.base_url,
            version=self.version,
            task_set=self.task_set,
            board=self.board,
            wanted=replace(self.wanted, limit=limit) if limit else self.wanted,
        )
        return with_stratum(self.session, self.storage, board, self.stratum)


Asked = Annotated[AskedBoard, Depends()]


@router.get(_BOARD, responses=refusals(404, 422))
def get_leaderboard(asked: Asked) -> Leaderboard:
    """Rank the complete runs of one version, one task set and one protocol."""
    return asked.rank()


@router.get(
    _BOARD + ".csv",
    response_class=Response,
    responses=refusals(404, 422) | {200: {"content": {"text/csv": {}}, "description": "a header and rows"}},
)
def get_leaderboard_csv(asked: Asked) -> Response:
    """Return up to 10,000 rows of a board as CSV. The header includes the units."""
    board = asked.rank(limit=_CSV_ROWS)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(csv_table(board.rows))
    filename = f"{board.owner}-{board.name}-{board.version}-{board.board or 'empty'}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    return Response(text.getvalue(), media_type="text/csv", headers=headers)


@router.put(
    "/environments/{owner}/{name}/versions/{version}/boards/{board}",
    responses=refusals(308, 400, 401, 403, 404, 410, 422),
)
@audited("board.arrange")
def arrange_board(
    context: ForManager, owner: str, name: str, version: str, board: str, body: BoardSettings
) -> BoardInfo:
    """Set title, description and columns of a board, and whether it is the first of its version."""
    arguments = (context.caller, owner, name, version, board, body)
    return context.commit(lambda session: curation.arrange(session, *arguments))


@router.get("/runs/{run_id}/hiding", responses=refusals(404, 422))
def get_hiding(session: ReadSession, base_url: BaseUrl, run_id: str) -> HiddenRunInfo:
    """Show why a run is hidden from its board."""
    run = run_service.find(session, run_id)
    hidden = repository.find_hiding(session, run.run_id)
    if hidden is None:
        raise curation.not_hidden(run_id)
    return service.hidden_info(run, hidden, base_url)


@router.put("/runs/{run_id}/hiding", responses=refusals(400, 401, 403, 404, 422))
@audited("run.hide")
def hide_run(context: ForManager, run_id: str, body: HidingReason) -> HiddenRunInfo:
    """Hide a run from its board, with a public reason."""

    def record(session: Session) -> HiddenRunInfo:
        run, hidden = curation.hide(session, context.caller, run_id, body.reason)
        return service.hidden_info(run, hidden, context.base_url)

    return context.commit(record)


@router.delete("/runs/{run_id}/hiding", status_code=204, responses=refusals(401, 403, 404, 422))
@audited("run.show")
def show_run(context: ForManager, run_id: str) -> None:
    """Show a hidden run on its board again."""
    context.commit(lambda session: curation.show(session, context.caller, run_id))


async def page_filter(
    runs: Showing = "best",
    sort: BoardSort = "reward",
    level: VerificationLevel = "unverifiable",
    model: Annotated[str, Query(max_length=300)] = "",
    since: Annotated[str, Query(max_length=40)] = "",
    until: Annotated[str, Query(max_length=40)] = "",
    cursor: Annotated[str | None, Query(max_length=400)] = None,
) -> BoardFilter:
    """Return the filter of a page's form, whose fields may be empty."""
    return BoardFilter(runs, sort, level, model.strip(), _day(since), _day(until), cursor=cursor)


def _day(text: str) -> datetime | None:
    try:
        return _aware(datetime.fromisoformat(text)) if text else None
    except ValueError as error:
        raise HubProblem(
            422, "invalid_request", f"`{text}` is not a date", hint="write 2026-11-22"
        ) from error


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
