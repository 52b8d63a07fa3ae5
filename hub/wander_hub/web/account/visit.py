"""A visit to a page that requires signing in: an account, settings, or the administration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends
from starlette.responses import Response

from wander_hub.identity import Identity
from wander_hub.rights import rights
from wander_hub.web.account import forms
from wander_hub.web.sign_in import Visitor
from wander_hub.web.visit import Visit, Visiting


@dataclass(frozen=True)
class OwnVisit(Visit):
    """A visit by a signed-in user, perhaps after sending a form."""

    user: Identity

    def page(self, template: str, **values: Any) -> Response:
        """Draw the page, with the outcome of the form."""
        done = forms.outcome_of(self.request.query_params.get("done", ""))
        return super().page(template, done=done, **values)


async def _require_visitor(visit: Visiting, user: Visitor) -> OwnVisit:
    return OwnVisit(**vars(visit), user=user)


OwnVisiting = Annotated[OwnVisit, Depends(_require_visitor)]


async def _require_administrator(visit: OwnVisiting) -> OwnVisit:
    rights.require_administrator(visit.user)
    return visit


AdministratorVisiting = Annotated[OwnVisit, Depends(_require_administrator)]
