"""A visit to a page: the caller, and everything that the hub needs to draw the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import Response

from wander_hub.http.boundary import BaseUrl, HubSettings, HubStorage, ReadSession, caller_of
from wander_hub.identity import Identity
from wander_hub.web.templates import page


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
        """The signed-in user, or None."""
        return caller_of(self.request)

    def page(self, template: str, *, complete: bool = True, **values: Any) -> Response:
        """Draw the page. An incomplete page is not cached for other readers."""
        return page(self.request, template, shared=complete, **values)


async def _begin_visit(
    request: Request, session: ReadSession, storage: HubStorage, settings: HubSettings, base_url: BaseUrl
) -> Visit:
    return Visit(
        request, session, storage, settings, base_url
    )  # async, because a thread would cost more than this call


Visiting = Annotated[Visit, Depends(_begin_visit)]
