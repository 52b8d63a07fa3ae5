"""One's own account, an owner's and an environment's settings, and the forms on them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Query, Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response
from wander.wire import Problem
from wander.wire.environments import visibility_of
from wander.wire.events import EVENTS

from wander_hub import audit
from wander_hub.environments import service as environments
from wander_hub.environments import stars
from wander_hub.environments.models import Environment
from wander_hub.http import live
from wander_hub.http.bodies import form_fields
from wander_hub.http.boundary import (
    BaseUrl,
    Before,
    ByBody,
    Number,
    part_of_another,
)
from wander_hub.http.cookies import require_own_page
from wander_hub.http.problems import HubProblem, describe
from wander_hub.http.routing import HubRouter
from wander_hub.identity import Identity
from wander_hub.names import normalise_owner
from wander_hub.operation import job_queue
from wander_hub.people import organisations, second_factor, sign_in
from wander_hub.publishers import service as publishers
from wander_hub.quotas import service as quotas
from wander_hub.rights import invitations, members, rights
from wander_hub.rights import repository as rights_repository
from wander_hub.runs import signing
from wander_hub.web.account import forms
from wander_hub.web.account.visit import OwnVisit, OwnVisiting
from wander_hub.web.addresses import query_string
from wander_hub.web.refusals import Refused
from wander_hub.web.sign_in import local_path
from wander_hub.web.templates import as_json, page, render
from wander_hub.webhooks import service as webhooks

router = HubRouter(include_in_schema=False)

_ENTRIES, _DELIVERIES, _STARS = 100, 50, 50
"""Of the audit log, of a webhook's deliveries, and of marked environments, on a page."""


_ACCOUNT = {
    "": "Owners and roles",
    "tokens": "Tokens",
    "keys": "Keys that sign runs",
    "password": "Password",
    "second-factor": "Second factor",
    "browsers": "Browsers",
    "stars": "Stars",
}
_OF_OWNER = {
    "": "Members",
    "new-environments": "New environments",
    "jobs": "Waiting and running",
    "quota": "Quota",
    "publishers": "Trusted publishers",
    "webhooks": "Webhooks",
    "audit": "Audit log",
}
_OF_MAINTAINER = {"": "Status", "versions": "Versions", "jobs": "Waiting and running"}
_OF_MANAGER = {
    "members": "Members",
    "visibility": "Who sees it",
    "webhooks": "Webhooks",
    "move": "Another owner or name",
}
"""Sections of settings, by the end of their address."""


@router.get("/account/stars")
def show_stars(visit: OwnVisiting, cursor: Annotated[int, Query(ge=0, le=1_000_000)] = 0) -> Response:
    """The environments that one marked, the last marked first."""
    found = stars.list_page(visit.session, visit.user.user_id, cursor, _STARS)
    if visit.as_json:
        return as_json(found)
    return _show_section(visit, "account.html", "/account", _ACCOUNT, "stars", caller=visit.user, found=found)


@router.get("/account")
@router.get("/account/{own_section}")
def show_account(visit: OwnVisiting, own_section: str = "") -> Response:
    """One's owners and invitations, tokens, keys, password, second factor and browsers."""
    return _show_section(
        *(visit, "account.html", "/account", _ACCOUNT, own_section),
        caller=visit.user,
        tokens=members.tokens(visit.session, visit.user),
        owners=organisations.of_caller(visit.session, visit.user),
        roles=rights_repository.grants_of_user(visit.session, visit.user.user_id),
        invitations=invitations.of_caller(visit.session, visit.user),
        factor=second_factor.state_of(visit.session, visit.user.user_id),
        keys=signing.keys_of(visit.session, visit.user.user_id).data,
        has_password=sign_in.has_password(visit.session, visit.user.user_id),
    )


def _show_section(
    visit: OwnVisit, template: str, here: str, sections: dict[str, str], section: str, **values: Any
) -> Response:
    """Draw one section of settings, beside the menu of all."""
    if section not in sections:
        detail = f"these settings have no section `{section[:40]}`"
        raise HubProblem(404, "not_found", detail, hint=f"all of them stand at `{here}`")
    return visit.page(template, here=here, sections=sections, section=section, **values)


@router.post("/account/forms/{form}", dependencies=[Depends(ByBody())])
@part_of_another
async def send_form(request: Request, form: str, base_url: BaseUrl) -> Response:
    """Do what a form asks for, and go back to its page; a secret is shown this once.

    A refused one is given back on the page from which it came, with what was typed.
    """
    require_own_page(request, base_url)
    given = await form_fields(request)
    back = local_path(given.pop("back", ["/account"])[0])
    try:
        status, said, cookies = await forms.send(request, form, given)
    except HubProblem as refused:
        status, cookies = refused.status, []
        said = describe(request, refused).model_dump()
    if said.get("code") == "token_required":  # the session ended since the page was loaded
        return RedirectResponse(f"/login?next={quote(back)}", 303)
    if status >= 400:
        problem = Problem.model_validate(said)
        again = await forms.draw_again(request, Refused(form, given, problem), back)
        return again or page(
            *(request, "problem.html"), status=status, problem=problem, back=back, there="", suggestions=[]
        )
    secret = said.get("secret") or said.get("link") or (said.get("token") if form == "token" else None)
    if form == "confirm":
        secret = "\n".join(said["data"])
    if secret:
        answer = page(request, "secret.html", form=form, secret=secret, uri=said.get("uri"), back=back)
    else:
        place, sign, fragment = back.partition("#")
        address = f"{place}{'&' if '?' in place else '?'}done={form}{sign}{fragment}"
        answer = RedirectResponse(address, 303)
    for one in cookies:
        answer.headers.append("set-cookie", one)
    return answer


@router.get("/account/webhooks/{webhook}")
def show_webhook(visit: OwnVisiting, webhook: Number, before: Before = None) -> Response:
    """One webhook, with what was and is to be delivered to it; for who manages it."""
    info = webhooks.info_of(webhooks.find(visit.session, visit.user, webhook))
    return visit.page(
        "webhook.html",
        webhook=info,
        events=EVENTS,
        deliveries=webhooks.list_deliveries(visit.session, visit.user, webhook, before, _DELIVERIES),
    )


@router.get("/account/webhooks/{webhook}/deliveries/{delivery}")
def show_delivery(visit: OwnVisiting, webhook: Number, delivery: Number) -> Response:
    """One delivery: what is sent, and how the last attempt ended; for who manages the webhook."""
    return visit.page(
        "delivery.html",
        webhook=webhooks.info_of(webhooks.find(visit.session, visit.user, webhook)),
        delivery=webhooks.show_delivery(visit.session, visit.user, webhook, delivery),
    )


@router.get("/{owner}/settings/live")
def follow_owner_jobs(visit: OwnVisiting, owner: str) -> Response:
    """What waits and runs for an owner, as server-sent events; for its owners."""
    found = rights.owner_for(visit.session, visit.user, "manage", normalise_owner(owner))
    return _follow_jobs(visit.request, found.id)


@router.get("/{owner}/settings")
@router.get("/{owner}/settings/{section}")
def show_owner_settings(
    visit: OwnVisiting,
    owner: str,
    section: str = "",
    action: Annotated[str, Query(max_length=40)] = "",
    before: Before = None,
) -> Response:
    """Who may do what with an owner, its limits, webhooks and audit log; for its owners."""
    name = normalise_owner(owner)
    found = rights.owner_for(visit.session, visit.user, "manage", name)
    entries = audit.list_entries(
        visit.session, owner=found.name, action=action or None, before=before, limit=_ENTRIES + 1
    )
    more = len(entries) > _ENTRIES
    jobs = job_queue.list_open(visit.session, found.id)
    return _show_section(
        *(visit, "owner_settings.html", f"/{found.name}/settings", _OF_OWNER, section),
        scripts=["live.js"] if jobs else [],
        owner=found.name,
        action=action,
        narrowed=action or before,
        visibility=found.default_visibility,
        members=members.of_owner(visit.session, visit.user, found.name),
        jobs=jobs,
        publishers=publishers.publishers_of(visit.session, visit.user, found.name),
        publishes=visit.settings.audience is not None,
        quota=quotas.of_owner(visit.session, visit.settings, visit.user, found.name),
        webhooks=webhooks.list_all(visit.session, visit.user, found.name),
        events=EVENTS,
        entries=entries[:_ENTRIES],
        following=query_string(action=action, before=entries[_ENTRIES - 1].id) if more else None,
    )


@router.get("/{owner}/{name}/settings/live")
def follow_environment_jobs(visit: OwnVisiting, owner: str, name: str) -> Response:
    """What waits and runs for an environment, as server-sent events; for who maintains it."""
    found = _find_maintained(visit.session, visit.user, owner, name)
    return _follow_jobs(visit.request, found.owner_id, found.id)


def _follow_jobs(request: Request, owner: int, environment: int | None = None) -> Response:
    def draw(session: Session) -> live.Part:
        jobs = job_queue.list_open(session, owner, environment)
        return live.Part(render("open_jobs.html", jobs=jobs), bool(jobs))

    return live.stream(request, lambda session: job_queue.list_open_states(session, owner, environment), draw)


def _find_maintained(session: Session, caller: Identity, owner: str, name: str) -> Environment:
    found = environments.find(session, owner, name)
    if not rights.may(caller, "maintain", found):
        raise rights.refusal(caller, "maintain", found)
    return found


@router.get("/{owner}/{name}/settings")
@router.get("/{owner}/{name}/settings/{section}")
def show_environment_settings(visit: OwnVisiting, owner: str, name: str, section: str = "") -> Response:
    """Visibility, status, versions and transfer of an environment; for who maintains it."""
    found = _find_maintained(visit.session, visit.user, owner, name)
    manages = rights.may(visit.user, "manage", found)
    jobs = job_queue.list_open(visit.session, found.owner_id, found.id)
    hooks = webhooks.of_environment(visit.session, visit.user, found)
    sections = _OF_MAINTAINER | (_OF_MANAGER if manages else {})
    if hooks is None:  # those are for the owner's owners
        sections.pop("webhooks", None)
    return _show_section(
        *(visit, "environment_settings.html", f"/{found.label}/settings", sections, section),
        scripts=["live.js"] if jobs else [],
        summary=environments.summary_of(found),
        visibility=visibility_of(found.private, internal=found.internal),
        members=members.of_environment(visit.session, visit.user, found.owner.name, found.name)
        if manages
        else [],
        webhooks=hooks,
        events=EVENTS,
        reason=environments.reason_of(found),
        jobs=jobs,
        versions=environments.list_versions(visit.session, found),
    )
