"""Forms of the pages. Each form is forwarded to an API route, with the cookies of the original request.

This way only the API decides about permissions, validation and the audit log. The API checks the origin of a
form (`docs/decisions/forms.md`), so pages of other sites cannot send forms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from fastapi import Request
from starlette.responses import Response
from starlette.types import Message

from wander_hub.http.problems import HubProblem
from wander_hub.web.refused_form import CURRENT, RefusedForm

_OWN_HEADERS = (b"content-type", b"content-length", b"accept")
_OF_ROUTES = ("endpoint", "route", "path_params")
Given = dict[str, list[str]]


def _text(given: Given, name: str) -> str | None:
    return given.get(name, [""])[0] or None


def _chosen(given: Given, name: str) -> str:
    if given.get(name) != given.get("again"):
        raise HubProblem(422, "invalid_request", "the two new passwords differ")
    return _word(given, name)


def _chooses(visibility: str) -> Callable[[Given, str], bool]:
    return lambda given, _name: _word(given, "visibility") == visibility


def _word(given: Given, name: str) -> str:
    return given.get(name, [""])[0]


def _number(given: Given, name: str) -> object:
    text = _text(given, name)
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def _list(given: Given, name: str) -> list[str]:
    return given.get(name, [])


class _NoPage(Exception):
    """The form did not come from a page."""


@dataclass(frozen=True)
class Form:
    """The API request that a form makes."""

    method: str
    path: str
    """Path of the request, with the names of fields in braces."""
    fields: Mapping[str, Callable[[Given, str], object]] = field(default_factory=dict)
    """Fields of the request body. Empty for a request without a body."""
    outcome: str = "Done."
    """Message that the page shows afterwards."""


_VISIBILITY = {"private": _chooses("private"), "internal": _chooses("internal")}
_OWNER, _ENVIRONMENT = "/api/v1/owners/{owner}", "/api/v1/environments/{owner}/{name}"
_WEBHOOK, _RUN, _MODEL = "/api/v1/webhooks/{webhook}", "/api/v1/runs/{run}", "/api/v1/models/{owner}/{name}"
FORMS = {
    "token": Form(
        "POST", "/api/v1/tokens", {"name": _text, "scopes": _list, "target": _text, "days": _number}
    ),
    "revoke": Form("DELETE", "/api/v1/tokens/{prefix}"),
    "accept": Form("POST", "/api/v1/account/invitations/{invitation}/accept"),
    "decline": Form("DELETE", "/api/v1/account/invitations/{invitation}"),
    "password": Form(
        "PUT",
        "/api/v1/account/password",
        {"old": _text, "new": _chosen, "code": _word},
        outcome="Your password was changed, and you were signed out in all other browsers.",
    ),
    "second-factor": Form("POST", "/api/v1/account/second-factor", {"password": _text}),
    "confirm": Form("PUT", "/api/v1/account/second-factor", {"code": _text}),
    "second-factor-off": Form("POST", "/api/v1/account/second-factor/off", {"code": _text}),
    "sign-out": Form("DELETE", "/api/v1/account/sessions"),
    "organization": Form("POST", "/api/v1/owners", {"name": _text}),
    "member": Form("PUT", _OWNER + "/members/{user}", {"role": _text}),
    "remove-member": Form("DELETE", _OWNER + "/members/{user}"),
    "environment-member": Form("PUT", _ENVIRONMENT + "/members/{user}", {"role": _text}),
    "remove-environment-member": Form("DELETE", _ENVIRONMENT + "/members/{user}"),
    "new-environments": Form(
        "PUT",
        _OWNER + "/settings",
        {"private_by_default": _chooses("private"), "internal_by_default": _chooses("internal")},
    ),
    "webhook": Form(
        "POST", "/api/v1/webhooks", {"owner": _text, "environment": _text, "url": _text, "events": _list}
    ),
    "change-webhook": Form("PUT", _WEBHOOK, {"url": _text, "events": _list}),
    "renew-webhook": Form("POST", _WEBHOOK + "/secret"),
    "try-webhook": Form("POST", _WEBHOOK + "/test"),
    "redeliver": Form("POST", _WEBHOOK + "/deliveries/{delivery}/redeliver"),
    "remove-webhook": Form("DELETE", _WEBHOOK),
    "visibility": Form("PUT", _ENVIRONMENT + "/visibility", _VISIBILITY),
    "status": Form("PUT", _ENVIRONMENT + "/status", {"status": _text, "reason": _text, "successor": _text}),
    "transfer": Form("POST", _ENVIRONMENT + "/transfer", {"owner": _text, "name": _text}),
    "yank": Form("PUT", _ENVIRONMENT + "/versions/{version}/yank", {"reason": _text}),
    "unyank": Form("DELETE", _ENVIRONMENT + "/versions/{version}/yank"),
    "key": Form("POST", "/api/v1/keys", {"name": _text, "public_key": _text}),
    "revoke-key": Form("DELETE", "/api/v1/keys/{fingerprint}"),
    "publisher": Form(
        "POST",
        _OWNER + "/publishers",
        dict.fromkeys(("name", "kind", "subject", "workflow", "deployment", "issuer"), _text),
    ),
    "remove-publisher": Form("DELETE", _OWNER + "/publishers/{publisher}"),
    "rename-run": Form("PUT", _RUN + "/name", {"name": _word}, outcome="The run was renamed."),
    "publish-run": Form("POST", _RUN + "/publish"),
    "withdraw-run": Form("DELETE", _RUN + "?reason={reason}"),
    "hide-run": Form("PUT", _RUN + "/hiding", {"reason": _text}),
    "show-run": Form("DELETE", _RUN + "/hiding"),
    "model-visibility": Form("PUT", _MODEL + "/visibility", _VISIBILITY),
    "yank-revision": Form("PUT", _MODEL + "/revisions/{revision}/yank", {"reason": _text}),
    "unyank-revision": Form("DELETE", _MODEL + "/revisions/{revision}/yank"),
    "verify": Form("POST", _RUN + "/verifications", {"level": _text}),
    "cancel-verification": Form("DELETE", "/api/v1/verifications/{verification}"),
}


_USER = "/api/v1/users/{user}"
FORMS |= {
    "retry-job": Form("POST", "/api/v1/jobs/{job}/retry"),
    "retry-jobs": Form("POST", "/api/v1/jobs/retry"),
    "retry-jobs-of": Form("POST", "/api/v1/jobs/retry?kind={kind}"),
    "cancel-job": Form("DELETE", "/api/v1/jobs/{job}"),
    "add-user": Form("POST", "/api/v1/users", {"name": _text}),
    "user-link": Form("POST", _USER + "/link"),
    "disable-user": Form("PUT", _USER + "/disabled"),
    "enable-user": Form("DELETE", _USER + "/disabled"),
    "user-second-factor": Form("DELETE", _USER + "/second-factor"),
    "quota": Form("PUT", _OWNER + "/quota", {"stored_bytes": _number, "versions": _number, "runs": _number}),
}
"""All forms by their names, with those of the administrators' pages."""


def outcome_of(name: str) -> str:
    """Return the message that a page shows after a form, or an empty string for an unknown form."""
    return FORMS[name].outcome if name in FORMS else ""


async def send(request: Request, name: str, given: Given) -> tuple[int, dict[str, Any], list[str]]:
    """Forward a form to the API. Return the response's status, its JSON body, and its cookies."""
    form = FORMS.get(name)
    if form is None:
        raise HubProblem(404, "form_not_found", f"unknown form `{name[:80]}`")
    # Fields of the path have the prefix `at_`, because the body may have a field with the same name.
    parts = {key[3:]: quote(values[0], safe="") for key, values in given.items() if key.startswith("at_")}
    try:
        path = form.path.format_map(parts)
    except KeyError as error:
        raise HubProblem(422, "invalid_request", f"the form lacks the field `at_{error.args[0]}`") from error
    if not all(parts.values()):
        raise HubProblem(422, "invalid_request", "the form leaves out the name of its target")
    body = json.dumps({one: read(given, one) for one, read in form.fields.items()}).encode()
    content = (b"content-type", b"application/json") if form.fields else (b"accept", b"application/json")
    path, _, query = path.partition("?")
    answer = await _ask(request, form.method, path, content, query, body if form.fields else b"")
    if 300 <= answer.status_code < 400:
        hint = "open its page, and send the form again from there"
        raise HubProblem(409, "moved", "the target of the form was renamed", hint=hint)
    document = json.loads(bytes(answer.body)) if answer.body else {}
    return answer.status_code, document, answer.headers.getlist("set-cookie")


async def draw_again(request: Request, refused: RefusedForm, back: str) -> Response | None:
    """Return the page of a rejected form, with its input; None if no page has the form any more."""
    pages = dict[tuple[str, str], None]()  # each page once, in order
    for address in map(urlsplit, (request.headers.get("referer", ""), back)):
        query = "&".join(one for one in address.query.split("&") if not one.startswith("done="))
        pages[address.path or "/", query] = None
    token = CURRENT.set(refused)
    try:
        for path, query in pages:
            with suppress(_NoPage):
                answer = await _ask(request, "GET", path, (b"accept", b"text/html"), query)
                if refused.shown and answer.status_code == 200:
                    answer.status_code = refused.problem.status
                    return answer
    finally:
        CURRENT.reset(token)
    return None


async def _ask(
    request: Request, method: str, path: str, header: tuple[bytes, bytes], query: str = "", body: bytes = b""
) -> Response:
    """Send another request to the hub on behalf of the same user, and return the response."""
    kept = [pair for pair in request.scope["headers"] if pair[0] not in _OWN_HEADERS]
    length = (b"content-length", str(len(body)).encode())
    scope = {key: value for key, value in request.scope.items() if key not in _OF_ROUTES}
    scope |= {"method": method, "path": unquote(path), "raw_path": path.encode()}
    scope |= {"query_string": query.encode(), "headers": [*kept, header, length]}
    answer, content = Response(status_code=500), bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def take(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status_code, answer.raw_headers = message["status"], list(message["headers"])
            if method == "GET" and not answer.headers.get("content-type", "").startswith("text/html"):
                raise _NoPage  # it may be an endless stream
        content.extend(message.get("body", b""))

    await request.app.router(scope, receive, take)
    answer.body = bytes(content)
    return answer
