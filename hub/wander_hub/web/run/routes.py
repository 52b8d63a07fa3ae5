"""The pages of runs: a run with its rollouts, a rollout, and comparisons."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from wander_hub.http.responses import REVALIDATE
from wander_hub.http.routing import HubRouter
from wander_hub.runs import explorer
from wander_hub.runs import service as runs
from wander_hub.runs.explorer import RolloutFilter, RolloutSearch
from wander_hub.web.addresses import query_of
from wander_hub.web.run import compare, overlay
from wander_hub.web.run import page as run_page
from wander_hub.web.run import rollout as rollout_page
from wander_hub.web.run.page import RunQuery
from wander_hub.web.templates import render
from wander_hub.web.visit import Visiting

router = HubRouter(prefix="/runs", include_in_schema=False)

_TEXT_CSP = "sandbox; default-src 'none'"
Number = Annotated[int, Path(ge=0, le=2**31)]


class ViewerQuery(RolloutFilter):
    """Filters for the previous and the next rollout, and the first message to show."""

    first: Annotated[int, Query(alias="from", ge=0, le=2**31)] = 0


@router.get("/search")
def search_rollouts(visit: Visiting, wanted: Annotated[RolloutSearch, Query()]) -> Response:
    """Rollouts of all runs that contain a text, or that a filter finds."""
    asked = wanted.model_dump(exclude_defaults=True)
    found = explorer.search_runs(visit.session, visit.storage, wanted) if asked else None
    following = query_of({**asked, "cursor": found.next}) if found and found.next else None
    within = query_of(wanted.filter.asked())
    return visit.page("search.html", query=wanted, found=found, following=following, within=within)


@router.get("/compare")
def compare_runs(
    visit: Visiting, run: Annotated[list[str] | None, Query(max_length=20)] = None, joined: bool = False
) -> Response:
    """Two to six runs, compared with the first one, example by example.

    The curves of training runs are overlaid, or joined end to end with `joined`.
    """
    found = compare.find_runs(visit.session, run or [])
    enough = len(found) >= compare.FEWEST
    if enough and found[0].kind == "training":
        drawn = overlay.overlay(visit.storage, visit.base_url, found, joined=joined)
        return visit.page("overlay.html", scripts=["curves.js"], view=drawn)
    view = compare.compare(visit, found) if enough else None
    return visit.page("compare.html", view=view, given=[one.run_id for one in found])


@router.get("/{run_id}")
def show_run(visit: Visiting, run_id: str, query: Annotated[RunQuery, Query()]) -> Response:
    """One run: its pinned inputs, its numbers, its rollouts."""
    view = run_page.run(visit, run_id, query)
    scripts = ["rollouts.js"]
    scripts += ["curves.js"] if view.training else []
    return visit.page("run.html", scripts=scripts, view=view, complete=not view.incomplete)


@router.get("/{run_id}/rows")
def list_rows(visit: Visiting, run_id: str, query: Annotated[RunQuery, Query()]) -> Response:
    """Rows of the table of a run's rollouts, for a page that scrolls through all of them."""
    run = runs.with_rollouts(runs.find(visit.session, run_id))
    rows, _ = explorer.list_page(visit.session, visit.storage, run, query, query.offset, query.limit)
    body = render(
        "rollout_rows.html", rows=rows, rows_at=f"/runs/{run.run_id}/rollouts", asked=query.address()
    )
    return HTMLResponse(body, headers={"Cache-Control": REVALIDATE})


@router.get("/{run_id}/rollouts/{number}")
def show_rollout(
    visit: Visiting, run_id: str, number: Number, query: Annotated[ViewerQuery, Query()]
) -> Response:
    """One rollout: its messages, and the parts of its reward."""
    view = rollout_page.rollout(visit, run_id, number, query, query.first)
    return visit.page("rollout.html", scripts=["viewer.js"], view=view)


@router.get("/{run_id}/rollouts/{number}/messages/{place}")
def show_message(visit: Visiting, run_id: str, number: Number, place: Number) -> Response:
    """One complete message as plain text."""
    text = rollout_page.message(visit, run_id, number, place)
    body = text.encode("utf-8", "replace")
    return PlainTextResponse(body, headers={"Content-Security-Policy": _TEXT_CSP})


@router.get("/{run_id}/rollouts/{number}/turns/{place}")
def show_turn(
    visit: Visiting,
    run_id: str,
    number: Number,
    place: Number,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> Response:
    """The tokens of one turn with their log-probabilities."""
    view = rollout_page.turn(visit, run_id, number, place, offset)
    return visit.page("turn.html", view=view, complete=not view.incomplete)
