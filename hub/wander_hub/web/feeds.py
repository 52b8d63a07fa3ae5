"""Responses for programs other than the API: badges, feeds, a site map, and a description for models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, NamedTuple

from fastapi import Query
from markupsafe import Markup
from pydantic import Field
from sqlalchemy.orm import Session
from starlette.responses import Response
from wander.wire import EnvironmentSummary, RunDetail

from wander_hub.environments import browse
from wander_hub.environments import service as environments
from wander_hub.environments.repository import versions_of
from wander_hub.environments.schemas import EnvironmentFilter
from wander_hub.http.boundary import BaseUrl, ReadSession
from wander_hub.http.routing import HubRouter
from wander_hub.leaderboards import service as leaderboards
from wander_hub.leaderboards.filters import BoardFilter
from wander_hub.models.models import Revision
from wander_hub.models.repository import newest_of
from wander_hub.runs import service as runs
from wander_hub.web.docs.library import list_pages
from wander_hub.web.templates import render
from wander_hub.web.text import number, score_digits

router = HubRouter(include_in_schema=False)

_MOST, _FIRST = 2_000, 100
"""Number of environments on a page of the site map, and in `llms.txt` (those with the most runs)."""
_ENTRIES = 30
"""Number of entries in a feed."""
_SHORT = {"Cache-Control": "max-age=300"}
_LETTER = 6.6
"""Average width in pixels of a letter of size 11, rounded up."""


@router.get("/robots.txt")
def robots(base_url: BaseUrl) -> Response:
    """Crawlers may read the pages, but not the API with its downloads."""
    text = f"User-agent: *\nDisallow: /api/\nSitemap: {base_url}/sitemap.xml\n"
    return Response(text, media_type="text/plain")


@router.get("/sitemap.xml")
def site_map(
    session: ReadSession,
    base_url: BaseUrl,
    page: Annotated[Annotated[int, Field(ge=0, le=2**20)] | Literal["docs", "models"] | None, Query()] = None,
) -> Response:
    """The documentation, models, environments, owners and leaderboards: a list of parts, or one part."""
    places: list[tuple[str, datetime | None]] = []
    if page is None:
        parts = ["docs", "models", *browse.public_pages(session, _MOST)]
        body = render("sitemap.xml", pages=parts, base_url=base_url)
        return Response(body, media_type="application/xml", headers=_SHORT)
    if page == "docs":
        places = [
            ("/", None),
            ("/runs", None),
            ("/docs", None),
            *((f"/docs/{one}", None) for one in list_pages()),
        ]
    elif page == "models":
        places = [(_page_of(one), one.pushed_at) for one in newest_of(session, _MOST)]
    else:
        for owner, name, changed, has_runs in browse.public_page(session, page, _MOST):
            places.append((f"/{owner}/{name}", changed))
            places += [(f"/{owner}/{name}/leaderboard", changed)] if has_runs else []
        owners = {path.split("/")[1] for path, _ in places}
        places += [(f"/{owner}", None) for owner in sorted(owners)]
    body = render("sitemap.xml", places=places, base_url=base_url)
    return Response(body, media_type="application/xml", headers=_SHORT)


@router.get("/llms.txt")
def describe_hub(session: ReadSession, base_url: BaseUrl) -> Response:
    """A description of the hub and its use, in Markdown (llmstxt.org)."""
    found = environments.list_page(session, EnvironmentFilter(limit=_FIRST, sort="runs"))
    body = render("llms.txt", environments=found.data, base_url=base_url)
    return Response(body, media_type="text/markdown", headers=_SHORT)


@router.get("/{owner}/{name}/badge.svg")
def badge(session: ReadSession, base_url: BaseUrl, owner: str, name: str) -> Response:
    """The best result of an environment, as an image for a README."""
    found = environments.find(session, owner, name)
    rows = leaderboards.leaderboard(session, found, base_url, brief=True).rows
    value = "no result yet"
    if rows:
        best = rows[0]
        value = f"{number(best.reward_mean, score_digits(best.reward_low, best.reward_high))} {best.level}"
    drawn = _draw_badge(found.label, value)
    return Response(drawn, media_type="image/svg+xml", headers=_SHORT)


@router.get("/feed.atom")
def feed_of_environments(session: ReadSession, base_url: BaseUrl) -> Response:
    """The environments that changed last, as a feed."""
    found = environments.list_page(session, EnvironmentFilter(limit=_ENTRIES)).data
    return _feed("/feed.atom", "/", "Environments", [_entry_of_version(one) for one in found], base_url)


@router.get("/runs/feed.atom")
def feed_of_runs(session: ReadSession, base_url: BaseUrl) -> Response:
    """The newest runs, as a feed."""
    found = runs.list_page(session, base_url, limit=_ENTRIES).data
    return _feed("/runs/feed.atom", "/runs", "Runs", [_entry_of(one) for one in found], base_url)


@router.get("/models/feed.atom")
def feed_of_models(session: ReadSession, base_url: BaseUrl) -> Response:
    """The newest revisions of models, as a feed."""
    return _feed("/models/feed.atom", "/models", "Models", list_newest_models(session), base_url)


def list_newest_models(session: Session) -> list[FeedEntry]:
    """Return the newest revisions of models."""
    return [
        FeedEntry(
            _page_of(one),
            f"{_page_of(one).removeprefix('/models/')} {one.revision[:12]}",
            one.pushed_at,
            f"pushed by {one.pushed_by.name}",
        )
        for one in newest_of(session, _ENTRIES)
    ]


@router.get("/{owner}/feed.atom")
def feed_of_owner(session: ReadSession, base_url: BaseUrl, owner: str) -> Response:
    """The environments of an owner that changed last, as a feed."""
    environments.require_owner(session, owner)
    found = environments.list_page(session, EnvironmentFilter(owner=owner, limit=_ENTRIES)).data
    return _feed(
        f"/{owner}/feed.atom", f"/{owner}", owner, [_entry_of_version(one) for one in found], base_url
    )


@router.get("/{owner}/{name}/leaderboard/feed.atom")
def feed_of_board(session: ReadSession, base_url: BaseUrl, owner: str, name: str) -> Response:
    """The newest rows of the first leaderboard of an environment, as a feed."""
    found = environments.find(session, owner, name)
    newest = BoardFilter(sort="posted", limit=_ENTRIES)
    entries = [
        FeedEntry(
            f"/runs/{row.run_id}",
            f"{row.model}: {number(row.reward_mean, score_digits(row.reward_low, row.reward_high))}",
            row.posted_at,
            f"rank {row.rank_low} to {row.rank_high}, level {row.level}, by {row.posted_by}",
        )
        for row in leaderboards.leaderboard(session, found, base_url, wanted=newest, brief=True).rows
    ]
    here = f"/{found.label}/leaderboard"
    return _feed(f"{here}/feed.atom", here, f"Leaderboard of {found.label}", entries, base_url)


@router.get("/{owner}/{name}/feed.atom")
def feed_of_environment(session: ReadSession, base_url: BaseUrl, owner: str, name: str) -> Response:
    """The versions and the newest runs of an environment, as a feed."""
    found = environments.find(session, owner, name)
    label = found.label
    versions = [
        FeedEntry(f"/{label}/versions/{one.version}", f"{label} {one.version}", one.uploaded_at, one.summary)
        for one in versions_of(session, found)
    ]
    newest = runs.list_page(session, base_url, environment=label, limit=_ENTRIES).data
    entries = sorted([*versions, *map(_entry_of, newest)], key=lambda one: one.updated, reverse=True)
    return _feed(f"/{label}/feed.atom", f"/{label}", label, entries[:_ENTRIES], base_url)


class FeedEntry(NamedTuple):
    """One entry of a feed."""

    path: str
    title: str
    updated: datetime
    summary: str


def _entry_of_version(one: EnvironmentSummary) -> FeedEntry:
    label = f"{one.owner}/{one.name}"
    path = f"/{label}/versions/{one.latest_version}"
    return FeedEntry(path, f"{label} {one.latest_version}", one.updated_at, one.summary)


def _page_of(one: Revision) -> str:
    return f"/models/{one.model.owner.name}/{one.model.name}"


def _entry_of(run: RunDetail) -> FeedEntry:
    pin, summary = run.manifest.environment, run.summary
    digits = score_digits(summary.reward_low, summary.reward_high)
    title = f"{run.manifest.model.name} on {pin.owner}/{pin.name} {pin.version}"
    description = f"mean reward {number(summary.reward_mean, digits)}, level {run.level}, by {run.posted_by}"
    return FeedEntry(f"/runs/{run.run_id}", title, run.posted_at, description)


def _feed(here: str, page: str, title: str, entries: list[FeedEntry], base_url: str) -> Response:
    body = render("feed.xml", here=here, page=page, title=title, entries=entries, base_url=base_url)
    return Response(body, media_type="application/atom+xml", headers=_SHORT)


def _draw_badge(label: str, value: str) -> Markup:
    left, right = (round(len(text) * _LETTER) + 14 for text in (label, value))
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="20" role="img" aria-label="{1}: {2}">'
        '<rect width="{0}" height="20" rx="3" fill="#0072b2"/>'
        '<path d="M3 0h{3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#3b4249"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        'text-anchor="middle"><text x="{4}" y="14">{1}</text><text x="{5}" y="14">{2}</text></g></svg>'
    ).format(left + right, label, value, left - 3, left / 2, left + right / 2)
