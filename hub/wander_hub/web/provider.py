"""Signing in with an identity provider, and linking the provider's account to an account of the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import Depends, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from wander_hub import audit
from wander_hub.http import cookies
from wander_hub.http.boundary import BaseUrl, ByBody, audited, optional_identity, origin_of, part_of_upload
from wander_hub.http.problems import HubProblem
from wander_hub.http.routing import HubRouter
from wander_hub.identity import Identity
from wander_hub.people import attempts, identities
from wander_hub.people.provider import Provider, SignInVisit, refusal
from wander_hub.web.sign_in import Next, local_path, login_page, signed_in
from wander_hub.web.templates import page

router = HubRouter(include_in_schema=False)

_BACK = "/login/oidc/callback"
_COOKIE, _SECONDS = "oidc", 600


@router.get("/login/oidc")
async def redirect_to_provider(request: Request, base_url: BaseUrl, next: Next = "/") -> Response:
    """Send the browser to the provider."""
    visit = SignInVisit.begin(local_path(next))
    return await _leave(request, base_url, visit, lambda address: RedirectResponse(address, 303))


@router.post("/login/oidc/link", dependencies=[Depends(ByBody())])
@part_of_upload
async def link_at_provider(request: Request, base_url: BaseUrl) -> Response:
    """Show a link to the provider, because browsers do not follow a form's redirect to another site."""
    cookies.require_own_page(request, base_url)
    caller = await run_in_threadpool(optional_identity, request)
    if caller is None or caller.browser_session is None:
        refused = HubProblem(401, "not_signed_in", "sign in with your password before you link an account")
        return await _refuse(request, refused)
    visit = SignInVisit.begin("/login", cookies.read_cookie(request, base_url) or "")
    return await _leave(
        request, base_url, visit, lambda address: page(request, "leave.html", address=address)
    )


@router.get(_BACK)
@audited("user.sign_in")
async def handle_callback(request: Request, base_url: BaseUrl, state: str = "") -> Response:
    """Start a session for a user who returns from the provider, or link the user's account."""
    provider = _provider(request)
    cookie = cookies.read_cookie(request, base_url, _COOKIE)
    try:
        if cookie is None:
            raise refusal("wrong_state", "this sign-in did not start in this browser")
        visit = SignInVisit.of(cookie, cookies.read_cookie(request, base_url) or "")
        caller = await run_in_threadpool(_begin_attempt, request, visit)
        claims = await provider.claims(visit, request.query_params, base_url + _BACK)
        answer = await run_in_threadpool(_welcome, request, base_url, visit, caller, claims)
    except HubProblem as refused:
        answer = await _refuse(request, refused)
    cookies.write_cookie(answer, base_url, "", 0, _COOKIE)
    return answer


def _begin_attempt(request: Request, visit: SignInVisit) -> Identity | None:
    """Return the user whose account a visit links, or None if it signs in. Both count as an attempt."""
    caller = optional_identity(request) if visit.session else None
    if visit.session and (caller is None or caller.browser_session is None):
        raise refusal("wrong_state", "you signed out before the account could be linked")
    attempts.count_attempt(request.app.state.database, "oidc", origin_of(request, caller).address or "")
    return caller


def _welcome(
    request: Request, base_url: str, visit: SignInVisit, caller: Identity | None, claims: dict[str, Any]
) -> Response:
    """Sign in the user that the provider names, or link the provider's account to the caller."""
    database, settings = request.app.state.database, request.app.state.settings
    origin = origin_of(request, caller)
    if caller is not None:
        origin = replace(origin, action="user.identity.link")

    def finish(session: Session) -> str | None:
        attempts.forget_failures(session, "oidc", origin.address or "")
        if caller is None:
            return identities.sign_in_by_provider(session, settings, claims)
        identities.link_identity(session, claims["iss"], claims["sub"], caller.user_id)
        return None

    begun = database.commit(audit.recorded(finish, origin))
    following = local_path(visit.following)
    return signed_in(begun, settings, base_url, following) if begun else RedirectResponse(following, 303)


async def _leave(
    request: Request, base_url: str, visit: SignInVisit, lead: Callable[[str], Response]
) -> Response:
    """Return a response that leads to the provider. A cookie remembers the visit."""
    try:
        answer = lead(await _provider(request).address(visit, base_url + _BACK))
    except HubProblem as refused:
        if refused.status < 500:
            raise
        return await _refuse(request, refused)
    cookies.write_cookie(answer, base_url, visit.cookie, _SECONDS, _COOKIE)
    return answer


async def _refuse(request: Request, refused: HubProblem) -> Response:
    """Return the sign-in page with the error."""
    return await run_in_threadpool(login_page, request, refused=refused)


def _provider(request: Request) -> Provider:
    """Return the application's provider, which caches the addresses and keys of the service."""
    state: Any = request.app.state
    if state.settings.sign_in_provider is None:
        raise HubProblem(404, "no_provider", "this hub accepts only passwords to sign in")
    if getattr(state, "provider", None) is None:
        state.provider = Provider(state.settings.sign_in_provider)
    provider: Provider = state.provider
    return provider
