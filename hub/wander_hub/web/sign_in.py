"""The forms for signing in and out, which work without JavaScript."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from wander_hub.http import cookies
from wander_hub.http.bodies import form_fields
from wander_hub.http.boundary import (
    BaseUrl,
    ByBody,
    HubDatabase,
    HubSettings,
    audited,
    caller_of,
    optional_identity,
    origin_of,
    part_of_upload,
)
from wander_hub.http.problems import HubProblem
from wander_hub.http.routing import HubRouter
from wander_hub.identity import Identity
from wander_hub.people import identities, sessions
from wander_hub.people import sign_in as people
from wander_hub.settings import Settings
from wander_hub.web.templates import page

router = HubRouter(include_in_schema=False)

_LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]*")
"""A path on this hub. Browsers read a backslash as a slash, so a path with one could name another host."""
Next = Annotated[str, Query(max_length=2000)]


def _require_visitor(request: Request) -> Identity:
    """Return the signed-in user, or redirect to the sign-in page, which leads back here."""
    if (caller := optional_identity(request)) is not None:
        return caller
    headers = {"Location": f"/login?next={quote(request.url.path)}"}
    raise HubProblem(303, "sign_in_first", "sign in to see this page", headers=headers)


Visitor = Annotated[Identity, Depends(_require_visitor)]


@router.get("/login")
def show_form(request: Request, next: Next = "/") -> Response:
    """The sign-in form."""
    optional_identity(request)
    return login_page(request, local_path(next))


@router.post("/login", dependencies=[Depends(ByBody())])
@audited("user.sign_in")
async def sign_in(
    request: Request, database: HubDatabase, settings: HubSettings, base_url: BaseUrl
) -> Response:
    """Start a session, and redirect to the page that the visitor came from."""
    form = await _read_own_form(request, base_url)
    following = local_path(form.get("next", "/"))
    credentials = (form.get("name", ""), form.get("password", ""), form.get("second", ""))
    try:
        origin = origin_of(request, None)
        cookie = await run_in_threadpool(people.sign_in, database, settings, *credentials, origin)
    except HubProblem as refused:
        return login_page(request, following, refused)
    return signed_in(cookie, settings, base_url, following)


@router.get("/login/password")
def show_password_form(request: Request) -> Response:
    """The form that sets a password with a code."""
    return _form(request, "password.html")


@router.post("/login/password", dependencies=[Depends(ByBody())])
@audited("user.password")
async def choose_password(
    request: Request, database: HubDatabase, settings: HubSettings, base_url: BaseUrl
) -> Response:
    """Set a password with a code, and sign in."""
    form = await _read_own_form(request, base_url)
    credentials = (form.get("code", ""), form.get("password", ""), form.get("second", ""))
    try:
        origin = origin_of(request, None)
        cookie = await run_in_threadpool(people.use_code, database, settings, *credentials, origin)
    except HubProblem as refused:
        return _form(request, "password.html", refused)
    return signed_in(cookie, settings, base_url, "/")


@router.post("/logout", dependencies=[Depends(ByBody())])
@part_of_upload
def sign_out(request: Request, database: HubDatabase, base_url: BaseUrl) -> Response:
    """End the session of this browser."""
    cookies.require_own_page(request, base_url)
    if cookie := cookies.read_cookie(request, base_url):
        database.commit(lambda session: sessions.end_session(session, cookie))
    answer = RedirectResponse("/", 303)
    cookies.write_cookie(answer, base_url, "", 0)
    return answer


def local_path(wanted: str) -> str:
    """Return the wanted address if it is a path of this hub, else the path of the home page."""
    return wanted if _LOCAL.fullmatch(wanted) else "/"


async def _read_own_form(request: Request, base_url: str) -> dict[str, str]:
    """Return the fields of a form of this hub. Other sites must not be able to sign a visitor in."""
    cookies.require_own_page(request, base_url)
    return {name: values[0] for name, values in (await form_fields(request)).items()}


def login_page(request: Request, following: str = "/", refused: HubProblem | None = None) -> Response:
    """Return the sign-in form, with the error of the last attempt."""
    viewer = caller_of(request)
    provider, linked = request.app.state.settings.sign_in_provider, []
    if provider is not None and viewer is not None:
        with request.app.state.database.read() as session:
            linked = [one.subject for one in identities.list_identities(session, viewer.user_id)]
    known = {"provider": provider and provider.name, "linked": linked}
    return _form(request, "login.html", refused, next=following, **known)


def signed_in(cookie: str, settings: Settings, base_url: str, following: str) -> Response:
    """Set the session cookie and redirect to the next page."""
    answer = RedirectResponse(following, 303)
    cookies.write_cookie(answer, base_url, cookie, int(settings.session_hours * 3600))
    return answer


def _form(request: Request, template: str, refused: HubProblem | None = None, **values: Any) -> Response:
    if refused is None:
        return page(request, template, fault=None, **values)
    fault = refused.detail + (f" ({refused.hint})" if refused.hint else "")
    answer = page(request, template, status=refused.status, fault=fault, **values)
    answer.headers.update(refused.headers)
    return answer
