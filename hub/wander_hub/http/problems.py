"""Error responses: RFC 9457 problem details with a stable code and a hint.

Services raise `HubProblem`. The handlers in this module turn it and all other exceptions into
`application/problem+json`, or into a page if a browser asked for one.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from obstore.exceptions import BaseError
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response
from wander.wire import Problem
from wander.wire.untrusted_text import RefusedText

from wander_hub.http.middleware import BROWSER_HEADERS, REQUEST_ID_HEADER
from wander_hub.http.spelling import redirect_misspelled
from wander_hub.security import without_secrets
from wander_hub.storage import ObjectMissing, log_missing

logger = logging.getLogger("wander_hub")

PageRenderer = Callable[[Request, Problem, dict[str, str]], Response]


class HubProblem(Exception):
    """An error response with a status, a stable code, a message and a hint."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str | None = None,
        errors: list[dict[str, Any]] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.errors = errors
        self.headers = headers or {}


class Moved(Exception):
    """The requested object has a new address; the response is a redirect that keeps the method."""

    def __init__(self, owner: str, name: str) -> None:
        super().__init__(f"{owner}/{name}")
        self.owner = owner
        self.name = name


_HANDLED = (
    *(HubProblem, HTTPException, RequestValidationError, IntegrityError, OperationalError, DataError),
    *(InterfaceError, NoConnectionFree, BaseError, OSError, OverflowError, RefusedText),
)
"""Exceptions that are turned into responses inside the middleware. The server logs any other exception with
its traceback."""


_MOST_FAULTS, _LONGEST_PART, _DEEPEST = 10, 200, 10
"""Maximum number of faults in a response, of characters in each value, and of elements in the path of a
fault."""
_LONGEST_DETAIL = 2000
_OF_MACHINES = frozenset("_ api files health live metrics openapi.json ready simple".split())  # noqa: SIM905
_OF_FORMS = frozenset({"account", "login", "logout"})
"""First path segments of addresses that receive forms from browsers."""


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI responses that document these statuses as problems."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def install_handlers(app: FastAPI, render_page: PageRenderer) -> None:
    """Register the exception handlers; `render_page` renders a problem as an HTML page."""

    def answer(request: Request, error: Exception) -> Response:
        unrouted = isinstance(error, HTTPException) and error.status_code in (404, 405)
        if unrouted and (redirect := redirect_misspelled(request)) is not None:
            return redirect
        failure = error if isinstance(error, HubProblem) else problem_of(error)
        if failure.status == HTTPStatus.UNAUTHORIZED:
            failure = refused_credentials(request) or failure
        request.app.state.metrics.count_problem(failure.code)
        problem = describe(request, failure)
        # Responses to unexpected errors bypass all middleware, so add the middleware's headers here.
        headers = {**BROWSER_HEADERS, REQUEST_ID_HEADER: problem.request_id or "", **failure.headers}
        if wants_page(request):
            return render_page(request, problem, headers)
        return JSONResponse(
            problem.model_dump(exclude_none=True),
            failure.status,
            headers=headers,
            media_type="application/problem+json",
        )

    app.add_exception_handler(Moved, _redirect)
    for kind in (*_HANDLED, Exception):
        app.add_exception_handler(kind, answer)


def refused_credentials(request: Request) -> HubProblem | None:
    """Return the problem of invalid credentials that were ignored because public data does not need any."""
    refusal: HubProblem | None = getattr(request.state, "refused_credentials", None)
    return refusal


def describe(request: Request, failure: HubProblem) -> Problem:
    """Return the problem details for a request."""
    return Problem(
        title=HTTPStatus(failure.status).phrase,
        status=failure.status,
        detail=_shown(failure.detail),
        code=failure.code,
        hint=_shown(failure.hint) if failure.hint else None,
        request_id=request.scope.get("state", {}).get("request_id"),
        errors=failure.errors,
    )


def _shown(text: str) -> str:
    """Return a text as responses show it: shortened, and without tokens that were sent as names."""
    return without_secrets(text[: 2 * _LONGEST_DETAIL])[:_LONGEST_DETAIL]


def _redirect(request: Request, error: Exception) -> Response:
    """Redirect to the same path under the new owner and name; the path parameters are the old ones."""
    assert isinstance(error, Moved)
    params = request.path_params
    old = [params["owner"], params.get("name") or params.get("project")]
    new = [error.owner, error.name]
    segments = request.url.path.split("/")
    start = 0
    for was, becomes in zip(old, new, strict=True):
        start = segments.index(was, start)
        segments[start] = becomes
        start += 1
    query = f"?{request.url.query}" if request.url.query else ""
    status = 301 if request.method in {"GET", "HEAD"} else 308
    address = "/".join(quote(segment) for segment in segments) + query
    # A name may move back, so the redirect must not be cached permanently.
    return RedirectResponse(address, status, headers={"Cache-Control": "no-cache"})


def problem_of(error: Exception) -> HubProblem:
    """Return the problem for an exception of a library."""
    if isinstance(error, HTTPException):
        too_large = error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        code = "too_large" if too_large else HTTPStatus(error.status_code).name.lower()
        return HubProblem(error.status_code, code, str(error.detail), headers=dict(error.headers or {}))
    if isinstance(error, RequestValidationError):
        errors = [
            {
                "loc": [str(part)[:_LONGEST_PART] for part in fault["loc"][:_DEEPEST]],
                "msg": fault["msg"][:_LONGEST_PART],
                "type": fault["type"],
                "ctx": {name: str(value)[:_LONGEST_PART] for name, value in fault.get("ctx", {}).items()},
            }
            for fault in error.errors()[:_MOST_FAULTS]
        ]
        return HubProblem(422, "invalid_request", "the request does not match the API", errors=errors)
    if isinstance(error, RefusedText):
        status, code = (413, "too_large") if error.too_large else (422, "invalid_request")
        return HubProblem(status, code, str(error))
    if isinstance(error, DataError | OverflowError):
        return HubProblem(422, "invalid_request", "a value is outside of the range that the hub can store")
    if isinstance(error, IntegrityError):
        hint = "send the same request again"
        return HubProblem(409, "concurrent_change", "another request changed the same object", hint=hint)
    if (outage := _outage_of(error)) is not None:
        logger.error("%s: %s", outage.detail, _first_line(error))
        return outage
    if isinstance(error, ObjectMissing):
        log_missing(error.sha256)
        hint = "tell the hub's operator to run `wander-hub fsck`, which lists missing objects"
        return HubProblem(500, "object_missing", "a required file is missing in the hub's storage", hint=hint)
    logger.error("unexpected failure", exc_info=error)
    return HubProblem(500, "internal_error", "the hub failed; look up the request id in the operator's log")


def log_failure(what: str, error: Exception) -> None:
    """Log a failure of background work, in one line if the disk, the database or the storage caused it."""
    outage = _outage_of(error)
    if outage is None:
        logger.error("%s", what, exc_info=error)
    else:
        logger.error("%s: %s: %s", what, outage.detail, _first_line(error))


def _outage_of(error: Exception) -> HubProblem | None:
    """Return the problem for a full disk or an unavailable database or object store; None for other
    errors."""
    full = ("No space left on device", "database or disk is full")
    no_space = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
    if no_space or any(words in str(error) for words in full):
        return HubProblem(507, "storage_full", "the hub's disk is full", hint="tell the hub's operator")
    hint = "try again; if the error persists, tell the hub's operator"
    if isinstance(error, BaseError):
        return HubProblem(503, "storage_unavailable", "the hub's object store does not respond", hint=hint)
    if _is_read_only(error):
        return HubProblem(503, "database_unavailable", "the hub's database is read-only", hint=hint)
    if _is_away(error):
        return HubProblem(503, "database_unavailable", "the hub's database does not respond", hint=hint)
    return None


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]


def _is_read_only(error: Exception) -> bool:
    """Return whether a change failed because the database or its disk is read-only."""
    sqlstate = getattr(getattr(error, "orig", None), "sqlstate", None)
    return sqlstate == "25006" or "attempt to write a readonly database" in str(error)


def _is_away(error: Exception) -> bool:
    """Return whether PostgreSQL is unreachable, shuts down, or is out of connections."""
    if isinstance(error, OperationalError):
        return hasattr(error.orig, "sqlstate")
    return isinstance(error, NoConnectionFree) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )


def wants_page(request: Request) -> bool:
    """Return whether a person in a browser sent the request: HTML is accepted, and the path is not for
    programs."""
    parts = request.url.path.strip("/").split("/")
    if parts[0] in _OF_MACHINES or (
        len(parts) > 1 and parts[1] in {"simple", "legacy", "files", "integrity"}
    ):
        return False
    loads = request.method in {"GET", "HEAD"} or parts[0] in _OF_FORMS
    return loads and "text/html" in request.headers.get("accept", "")
