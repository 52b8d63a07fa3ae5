"""Responses for programs other than the API: badges, and a description for models."""

from __future__ import annotations

from markupsafe import Markup
from starlette.responses import Response

from wander_hub.environments import service as environments
from wander_hub.environments.schemas import EnvironmentFilter
from wander_hub.http.boundary import BaseUrl, ReadSession
from wander_hub.http.routing import HubRouter
from wander_hub.leaderboards import service as leaderboards
from wander_hub.web.templates import render
from wander_hub.web.text import number, score_digits

router = HubRouter(include_in_schema=False)

_FIRST = 100
"""Number of environments in `llms.txt`, those with the most runs."""
_SHORT = {"Cache-Control": "max-age=300"}
_LETTER = 6.6
"""Average width in pixels of a letter of size 11, rounded up."""


@router.get("/robots.txt")
def robots() -> Response:
    """Crawlers may read the pages, but not the API with its downloads."""
    return Response("User-agent: *\nDisallow: /api/\n", media_type="text/plain")


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


def _draw_badge(label: str, value: str) -> Markup:
    left, right = (round(len(text) * _LETTER) + 14 for text in (label, value))
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="20" role="img" aria-label="{1}: {2}">'
        '<rect width="{0}" height="20" rx="3" fill="#0072b2"/>'
        '<path d="M3 0h{3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#3b4249"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        'text-anchor="middle"><text x="{4}" y="14">{1}</text><text x="{5}" y="14">{2}</text></g></svg>'
    ).format(left + right, label, value, left - 3, left / 2, left + right / 2)
