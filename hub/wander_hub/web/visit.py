"""A visit to a page: who asks, and all that the hub draws the page from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import Response

from wander_hub.http.boundary import BaseUrl, HubSettings, HubStorage, ReadSession, caller_of
from wander_hub.identity import Identity
from wander_hub.web.templates import page, wants_json


@dataclass(frozen=True)
class Visit:
    """A request for a page."""

    request: Request
    session: ReadSession
    storage: HubStorage
    settings: HubSettings
    base_url: BaseUrl

    @property
    def caller(self) -> Identity | None:
        """Who visits; None for somebody who is not signed in."""
        return caller_of(self.request)

    @property
    def as_json(self) -> bool:
        """Whether what the page shows is asked for as JSON."""
        return wants_json(self.request)

    def page(self, template: str, *, complete: bool = True, **values: Any) -> Response:
        """Draw the page; one from which something is missing for now is not kept for others."""
        return page(self.request, template, shared=complete, **values)


async def _begin_visit(
    request: Request, session: ReadSession, storage: HubStorage, settings: HubSettings, base_url: BaseUrl
) -> Visit:
    return Visit(request, session, storage, settings, base_url)  # not in a thread, which costs more than this


Visiting = Annotated[Visit, Depends(_begin_visit)]
