"""The account page, the settings of owners and environments, and the forms on them."""

from __future__ import annotations

from collections.abc import Callable
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
from wander_hub.environments.models import Environment
from wander_hub.http.bodies import form_fields
from wander_hub.http.boundary import (
    BaseUrl,
    Before,
    ByBody,
    Number,
    part_of_upload,
)
from wander_hub.http.cookies import require_own_page
from wander_hub.http.problems import HubProblem, describe
from wander_hub.http.routing import HubRouter
from wander_hub.identity import Identity
from wander_hub.names import normalize_owner
from wander_hub.operation import job_queue
from wander_hub.people import organizations, second_factor, sign_in
from wander_hub.publishers import service as publishers
from wander_hub.quotas import service as quotas
from wander_hub.rights import invitations, members, rights
from wander_hub.rights import repository as rights_repository
from wander_hub.runs import signing
from wander_hub.web.account import forms
from wander_hub.web.account.visit import OwnVisit, OwnVisiting
from wander_hub.web.addresses import query_string
from wander_hub.web.refused_form import RefusedForm
from wander_hub.web.sign_in import local_path
from wander_hub.web.templates import page
from wander_hub.webhooks import service as webhooks

router = HubRouter(include_in_schema=False)

_ENTRIES, _DELIVERIES = 100, 50
"""Number of audit log entries and webhook deliveries on a page."""


Sections = dict[str, tuple[str, Callable[[], dict[str, Any]]]]
"""Sections of settings by the last part of their address: the heading, and the values for the template."""


@router.get("/account")
@router.get("/account/{own_section}")
def show_account(visit: OwnVisiting, own_section: str = "") -> Response:
    """The user's owners and invitations, tokens, keys, password, second factor and sessions."""
    session, user = visit.session, visit.user
    sections: Sections = {
        "": (
            "Organizations and roles",
            lambda: {
                "owners": organizations.list_owners_of_caller(session, user),
                "roles": rights_repository.grants_of_user(session, user.user_id),
                "invitations": invitations.invitations_of_caller(session, user),
            },
        ),
        "tokens": ("Tokens", lambda: {"tokens": members.list_tokens(session, user)}),
        "keys": ("Signing keys", lambda: {"keys": signing.keys_of(session, user.user_id).data}),
        "password": (
            "Password",
            lambda: {
                "has_password": sign_in.has_password(session, user.user_id),
                "factor": second_factor.second_factor_of(session, user.user_id),
            },
        ),
        "second-factor": (
            "Second factor",
            lambda: {"factor": second_factor.second_factor_of(session, user.user_id)},
        ),
        "browsers": ("Sessions", dict),
    }
    return _show_section(visit, "account.html", "/account", sections, own_section, caller=user)


def _show_section(
    visit: OwnVisit, template: str, here: str, sections: Sections, section: str, **values: Any
) -> Response:
    """Draw one section of the settings, and the menu of all sections."""
    if section not in sections:
        detail = f"unknown section `{section[:40]}` of the settings"
        raise HubProblem(404, "not_found", detail, hint=f"`{here}` lists all sections")
    headings = {name: heading for name, (heading, _) in sections.items()}
    values |= {"here": here, "sections": headings, "section": section}
    return visit.page(template, **values, **sections[section][1]())


@router.post("/account/forms/{form}", dependencies=[Depends(ByBody())])
@part_of_upload
async def send_form(request: Request, form: str, base_url: BaseUrl) -> Response:
    """Send a form to the API, then return to its page, or show a new secret once.

    The page of a rejected form shows it again with its input.
    """
    require_own_page(request, base_url)
    given = await form_fields(request)
    back = local_path(given.pop("back", ["/account"])[0])
    try:
        status, content, cookies = await forms.send(request, form, given)
    except HubProblem as refused:
        status, cookies = refused.status, []
        content = describe(request, refused).model_dump()
    if content.get("code") == "token_required":  # the session has ended since the page was loaded
        return RedirectResponse(f"/login?next={quote(back)}", 303)
    if status >= 400:
        problem = Problem.model_validate(content)
        again = await forms.draw_again(request, RefusedForm(form, given, problem), back)
        return again or page(
            *(request, "problem.html"), status=status, problem=problem, back=back, there="", suggestions=[]
        )
    secret = content.get("secret") or content.get("link")
    secret = secret or (content.get("token") if form == "token" else None)
    if form == "confirm":
        secret = "\n".join(content["data"])
    if secret:
        answer = page(request, "secret.html", form=form, secret=secret, uri=content.get("uri"), back=back)
    else:
        place, sign, fragment = back.partition("#")
        address = f"{place}{'&' if '?' in place else '?'}done={form}{sign}{fragment}"
        answer = RedirectResponse(address, 303)
    for one in cookies:
        answer.headers.append("set-cookie", one)
    return answer


@router.get("/account/webhooks/{webhook}")
def show_webhook(visit: OwnVisiting, webhook: Number, before: Before = None) -> Response:
    """One webhook with its past and pending deliveries, for users who manage it."""
    info = webhooks.info_of(webhooks.find(visit.session, visit.user, webhook))
    return visit.page(
        "webhook.html",
        webhook=info,
        events=EVENTS,
        deliveries=webhooks.list_deliveries(visit.session, visit.user, webhook, before, _DELIVERIES),
    )


@router.get("/account/webhooks/{webhook}/deliveries/{delivery}")
def show_delivery(visit: OwnVisiting, webhook: Number, delivery: Number) -> Response:
    """One delivery: its request and the result of the last attempt, for users who manage the webhook."""
    return visit.page(
        "delivery.html",
        webhook=webhooks.info_of(webhooks.find(visit.session, visit.user, webhook)),
        delivery=webhooks.show_delivery(visit.session, visit.user, webhook, delivery),
    )


@router.get("/{owner}/settings")
@router.get("/{owner}/settings/{section}")
def show_owner_settings(
    visit: OwnVisiting,
    owner: str,
    section: str = "",
    action: Annotated[str, Query(max_length=40)] = "",
    before: Before = None,
) -> Response:
    """An owner's members, quota, jobs, publishers, webhooks and audit log, for its owners."""
    session, user, settings = visit.session, visit.user, visit.settings
    found = rights.owner_for(session, user, "manage", normalize_owner(owner))
    name = found.name

    def list_audit() -> dict[str, Any]:
        asked: dict[str, Any] = {"owner": name, "action": action or None, "before": before}
        entries = audit.list_entries(session, **asked, limit=_ENTRIES + 1)
        more = len(entries) > _ENTRIES
        return {
            "entries": entries[:_ENTRIES],
            "action": action,
            "narrowed": action or before,
            "following": query_string(action=action, before=entries[_ENTRIES - 1].id) if more else None,
        }

    sections: Sections = {
        "": ("Members", lambda: {"members": members.members_of_owner(session, user, name)}),
        "new-environments": ("New environments", lambda: {"visibility": found.default_visibility}),
        "jobs": ("Jobs", lambda: {"jobs": job_queue.list_open(session, found.id)}),
        "quota": ("Quota", lambda: {"quota": quotas.quota_of_owner(session, settings, user, name)}),
        "publishers": (
            "Trusted publishers",
            lambda: {
                "publishers": publishers.publishers_of(session, user, name),
                "publishes": settings.audience is not None,
            },
        ),
        "webhooks": (
            "Webhooks",
            lambda: {"webhooks": webhooks.list_all(session, user, name), "events": EVENTS},
        ),
        "audit": ("Audit log", list_audit),
    }
    return _show_section(visit, "owner_settings.html", f"/{name}/settings", sections, section, owner=name)


def _find_maintained(session: Session, caller: Identity, owner: str, name: str) -> Environment:
    found = environments.find(session, owner, name)
    if not rights.may(caller, "maintain", found):
        raise rights.refusal(caller, "maintain", found)
    return found


@router.get("/{owner}/{name}/settings")
@router.get("/{owner}/{name}/settings/{section}")
def show_environment_settings(visit: OwnVisiting, owner: str, name: str, section: str = "") -> Response:
    """Visibility, status, versions and transfer of an environment, for its maintainers."""
    session, user = visit.session, visit.user
    found = _find_maintained(session, user, owner, name)
    sections: Sections = {
        "": ("Status", lambda: {"reason": environments.reason_of(found)}),
        "versions": ("Versions", lambda: {"versions": environments.list_versions(session, found)}),
        "jobs": ("Jobs", lambda: {"jobs": job_queue.list_open(session, found.owner_id, found.id)}),
    }
    if rights.may(user, "manage", found):
        visibility = visibility_of(found.private, internal=found.internal)
        sections |= {
            "members": (
                "Members",
                lambda: {
                    "members": members.members_of_environment(session, user, found.owner.name, found.name)
                },
            ),
            "visibility": ("Visibility", lambda: {"visibility": visibility}),
        }
        if user.may_as_owner("manage", found.owner_id):
            sections["webhooks"] = (
                "Webhooks",
                lambda: {"webhooks": webhooks.of_environment(session, user, found), "events": EVENTS},
            )
        sections["move"] = ("Transfer or rename", dict)
    summary = environments.summary_of(found)
    here = f"/{found.label}/settings"
    return _show_section(visit, "environment_settings.html", here, sections, section, summary=summary)
