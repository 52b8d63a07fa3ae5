"""The pages of the hub: plain HTML from the server. Reading, searching and paging work without JavaScript."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from fastapi.routing import APIRoute
from pydantic import BeforeValidator, Field
from starlette.responses import Response
from wander.wire import Problem
from wander.wire.models import ModelRevision
from wander.wire.postings import LinkedRun

from wander_hub import names
from wander_hub.environments import service as environments
from wander_hub.environments.readme import place
from wander_hub.environments.repository import environment_named, owners_of, packages_of
from wander_hub.environments.schemas import KINDS, EnvironmentFilter, Sort
from wander_hub.http.boundary import database_of
from wander_hub.http.problems import HubProblem
from wander_hub.http.responses import IMMUTABLE, REVALIDATE
from wander_hub.http.routing import HubRouter
from wander_hub.leaderboards.filters import BoardFilter
from wander_hub.leaderboards.routes import page_filter
from wander_hub.models import repository as models
from wander_hub.models.service import LATEST, describe, describe_revision, find, find_revision
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.sealed import service as sealed
from wander_hub.web import board as board_page
from wander_hub.web import environment, machine_pages, source
from wander_hub.web.account import routes as account_routes
from wander_hub.web.account import system
from wander_hub.web.addresses import query_string
from wander_hub.web.docs import routes as docs_routes
from wander_hub.web.home import show_home
from wander_hub.web.run import routes as run_routes
from wander_hub.web.source import color_blocks
from wander_hub.web.templates import STATIC, page
from wander_hub.web.visit import Visit, Visiting

router = HubRouter(include_in_schema=False)
_PARTS = tuple(part.router for part in (machine_pages, docs_routes, run_routes, account_routes, system))
for _part in _PARTS:
    router.include_router(_part)

_PER_PAGE, _RECENT_RUNS = 50, 10
Cursor = Annotated[str | None, Query(max_length=300)]
_Whole = Annotated[int, Field(ge=-(2**31), le=2**31)] | None
Stratum = Annotated[Annotated[_Whole, BeforeValidator(lambda one: one or None)], Query()]
"""A stratum from a form, which sends an empty field if none is selected."""


@router.get("/")
def home(
    visit: Visiting,
    q: Annotated[str, Query(max_length=200)] = "",
    owner: Annotated[str | None, Query(max_length=39)] = None,
    tag: Annotated[str | None, Query(max_length=80)] = None,
    kind: Annotated[str | None, Query(max_length=40)] = None,
    deterministic: bool | None = None,
    checked: bool | None = None,
    license: Annotated[str | None, Query(max_length=100)] = None,
    sort: Annotated[Sort | Literal[""] | None, Query()] = None,
    cursor: Cursor = None,
) -> Response:
    """The home page: search, filters, counts and environments."""
    given = {
        "owner": names.normalize_owner(owner or "") or None,
        "tag": tag or None,
        "kind": kind or None,
        "license": license or None,
    }
    wanted = EnvironmentFilter(
        **given,
        q=q,
        deterministic=deterministic or None,
        checked=checked or None,
        sort=sort or None,
        limit=_PER_PAGE,
        cursor=cursor,
    )
    view = show_home(visit.session, wanted, visit.settings.featured)
    return visit.page("home.html", view=view, wanted=wanted, kinds=KINDS, q=q, tag=given["tag"])


@router.get("/static/{name}")
def static_file(name: str, v: str = "") -> Response:
    """The style sheet, or a script."""
    found = STATIC.get(name)
    if found is None:
        raise HubProblem(404, "not_found", f"the pages have no file `{name[:100]}`")
    caching = IMMUTABLE if v == found.digest else REVALIDATE
    return Response(found.body, media_type=found.media_type, headers={"Cache-Control": caching})


@router.get("/openapi")
def show_viewer(request: Request) -> Response:
    """The OpenAPI document in a viewer that can send the requests."""
    return page(request, "openapi.html", scripts=["openapi.js"])


@router.get("/runs")
def list_runs(
    visit: Visiting,
    environment: Annotated[str | None, Query(max_length=250)] = None,
    model: Annotated[str | None, Query(max_length=300)] = None,
    cursor: Cursor = None,
) -> Response:
    """Runs, newest first."""
    environment, model = environment or None, model or None  # a form sends empty fields
    asked = {"environment": environment, "model": model}
    rows, after = runs.list_rows(visit.session, **asked, limit=_PER_PAGE, cursor=cursor)
    following = query_string(**asked, cursor=after) if after else None
    return visit.page("runs.html", runs=rows, environment=environment, model=model, following=following)


@router.get("/sealed/{commitment}")
def show_sealed_set(visit: Visiting, commitment: str) -> Response:
    """A sealed task set: when it opens, and who has played it."""
    found = sealed.info_of(sealed.find(visit.session, commitment), visit.base_url)
    rows = sealed.opened_rows(visit.session, commitment) if found.opened_at is not None else []
    return visit.page("sealed.html", found=found, rows=rows, label=f"{found.owner}/{found.environment}")


@router.get("/models")
def list_models(
    visit: Visiting,
    q: Annotated[str, Query(max_length=200)] = "",
    before: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> Response:
    """Models, the last pushed first, with the runs of their weights."""
    word = q.strip()
    found = models.list_newest(visit.session, word, before, _PER_PAGE + 1)
    shown = found[:_PER_PAGE]
    posted = run_repository.runs_of_weights(visit.session, [one.weights_sha256 for one in shown])
    following = query_string(q=word, before=shown[-1].id) if len(found) > _PER_PAGE else None
    return visit.page("models.html", q=word, models=shown, posted=posted, following=following)


@router.get("/{owner}")
def show_owner(visit: Visiting, owner: str, cursor: Cursor = None) -> Response:
    """One owner's environments."""
    owner_id = environments.require_owner(visit.session, owner).id
    wanted = EnvironmentFilter(owner=owner, limit=_PER_PAGE, cursor=cursor)
    found = environments.list_page(visit.session, wanted)
    packages = packages_of(visit.session, owner_id, _PER_PAGE + 1)
    pushed = [one.name for one in models.models_of(visit.session, owner_id, _PER_PAGE)]
    following = query_string(cursor=found.next) if found.next else None
    viewer = visit.caller
    return visit.page(
        "owner.html",
        owner=owner,
        found=found,
        packages=packages,
        models=pushed,
        following=following,
        manages=viewer is not None and viewer.may_as_owner("manage", owner_id),
    )


@router.get("/{owner}/{name}")
@router.get("/{owner}/{name}/versions/{version}")
def show_environment(visit: Visiting, owner: str, name: str, version: str = "latest") -> Response:
    """One environment: its summary, how to run it, its versions, and its best results."""
    view = environment.show_environment(visit, owner, name, version)
    return visit.page("environment.html", view=view, complete=not view.sample_lost)


@router.get("/{owner}/{name}/versions/{version}/source")
def show_source(
    visit: Visiting,
    owner: str,
    name: str,
    version: str,
    file: Annotated[str | None, Query(max_length=1000)] = None,
    archive: source.Archive | None = None,
) -> Response:
    """The source code of one version, one file at a time, from its wheel or its source archive."""
    found = environments.find(visit.session, owner, name)
    files = source.find_source(visit.session, visit.storage, found, version, file, archive)
    view = source.draw_source(found, files)
    return visit.page("source.html", view=view, scripts=["source.js"])


@router.get("/{owner}/{name}/versions/{version}/image")
def show_image(
    visit: Visiting, owner: str, name: str, version: str, file: Annotated[str, Query(max_length=1000)] = ""
) -> Response:
    """An image that a version ships, for its README."""
    body, media_type = source.read_image(visit.session, visit.storage, owner, name, version, file)
    headers = {"Cache-Control": REVALIDATE, "Content-Security-Policy": "sandbox; default-src 'none'"}
    return Response(body, media_type=media_type, headers=headers)


@router.get("/{owner}/{name}/leaderboard")
def show_leaderboard(
    visit: Visiting,
    owner: str,
    name: str,
    wanted: Annotated[BoardFilter, Depends(page_filter)],
    version: Annotated[str | None, Query(max_length=100)] = None,
    task_set: Annotated[str | None, Query(max_length=64)] = None,
    board: Annotated[str | None, Query(max_length=64)] = None,
    column: Annotated[list[str] | None, Query(max_length=60)] = None,
    stratum: Stratum = None,
) -> Response:
    """One leaderboard. `column` adds columns, and `stratum` adds the rewards in one stratum."""
    view = board_page.leaderboard(
        *(visit, owner, name),
        version=version,
        task_set=task_set,
        board=board,
        wanted=wanted,
        wanted_columns=column or (),
        stratum=stratum,
    )
    return visit.page("leaderboard.html", view=view, name_board=board_page.name_board)


@router.get("/models/{owner}/{name}")
@router.get("/models/{owner}/{name}/{revision}")
def show_model(visit: Visiting, owner: str, name: str, revision: str = LATEST) -> Response:
    """One model: its card, its files, how to run it, and the runs that used these weights."""
    view = _model_view(visit, owner, name, revision)
    return visit.page("model.html", view=view)


@dataclass(frozen=True)
class ModelView:
    """Data for the page of one revision of a model."""

    revision: ModelRevision
    revisions: list[ModelRevision]
    latest: str | None
    card_html: str
    trained_by: list[LinkedRun]
    runs: list[run_repository.ListedRun]
    """Evaluations of exactly these weights, newest first."""
    maintained: bool
    """Whether the reader may yank its revisions."""
    managed: bool
    """Whether the reader may change its visibility."""
    visibility: str


def _model_view(visit: Visit, owner: str, name: str, word: str) -> ModelView:
    """Return a revision of a model, with the runs whose weights have its digest."""
    found = find(visit.session, owner, name)
    described = describe(visit.session, found, visit.base_url)
    shown = find_revision(visit.session, found, word)
    listed = run_repository.listed(visit.session)
    evaluations = run_repository.evaluations_of(listed, [shown.weights_sha256], _RECENT_RUNS)
    return ModelView(
        revision=describe_revision(shown, visit.base_url),
        revisions=described.revisions,
        latest=described.latest,
        card_html=color_blocks(place(shown.card_html, None)),
        trained_by=runs.makers_of(visit.session, shown.weights_sha256),
        runs=run_repository.list_rows(visit.session, evaluations),
        maintained=visit.caller is not None and visit.caller.may_as_owner("maintain", found.owner_id),
        managed=visit.caller is not None and visit.caller.may_as_owner("manage", found.owner_id),
        visibility=found.visibility,
    )


def problem_page(request: Request, problem: Problem, headers: dict[str, str]) -> Response:
    """Draw an error page. For a missing page, suggest similar names."""
    suggestions, there = list[str](), ""
    if problem.status == 404:
        with database_of(request).read() as session:
            owner, *rest = request.url.path.strip("/").split("/")
            if rest and environment_named(session, owner, rest[0]) is not None:
                there = f"/{owner}/{rest[0]}"
            elif rest:
                suggestions = environments.suggestions(session, owner, rest[0])
            else:  # one word: the owner may be missing
                suggestions = [f"{one}/{owner}" for one in owners_of(session, owner)[:3]]
    values: dict[str, Any] = {"problem": problem, "suggestions": suggestions, "there": there, "back": ""}
    answer = page(request, "problem.html", status=problem.status, **values)
    policy = "Content-Security-Policy"  # keep the page's own policy, which allows its scripts
    answer.headers.update({**headers, policy: answer.headers[policy]})
    return answer


for _route in (*router.routes, *(one for part in _PARTS for one in part.routes)):
    if isinstance(_route, APIRoute) and _route.methods == {"GET"}:
        _route.methods.add("HEAD")  # every page also answers HEAD
