"""Responses for programs other than the API: rules for crawlers, and a description for models."""

from __future__ import annotations

from starlette.responses import Response

from wander_hub.environments import service as environments
from wander_hub.environments.schemas import EnvironmentFilter
from wander_hub.http.boundary import BaseUrl, ReadSession
from wander_hub.http.routing import HubRouter
from wander_hub.web.templates import render

router = HubRouter(include_in_schema=False)

_FIRST = 100
"""Number of environments in `llms.txt`, those with the most runs."""
_SHORT = {"Cache-Control": "max-age=300"}


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
