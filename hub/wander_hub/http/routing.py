"""The hub's route class, which checks the caller first, then the size of the body, then its content.

FastAPI reads and parses a body before it authenticates the caller. A `HubRoute` authenticates first, and
reads a JSON body within the limits of its kind (`wander.wire.untrusted_text`). Other routes read their body
with `bodies.read_pieces` after their dependencies ran. A route that does neither gets an empty body
(`bodies.arriving`).
"""

from __future__ import annotations

import email.message
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import BaseRoute
from wander.wire.untrusted_text import CONTROL, RefusedText, TextKind, read_json

from wander_hub.http.bodies import read_body
from wander_hub.http.boundary import Needs, needs_of
from wander_hub.http.problems import HubProblem
from wander_hub.http.spelling import may_be_misspelled, redirect_misspelled

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_KIND = "body_kind"
_QUERY_NAMES = set[str]()
"""Names of the query parameters of all routes."""
_ON_THE_LOOP = 16 * 1024
"""Size of JSON below which a thread would cost more than parsing."""


def body_limits(kind: TextKind) -> Callable[[Endpoint], Endpoint]:
    """Set the kind of a route's JSON body, if it needs larger limits than `CONTROL`."""

    def mark(endpoint: Endpoint) -> Endpoint:
        vars(endpoint)[_KIND] = kind
        return endpoint

    return mark


class _ReadRequest(Request):
    """A request whose JSON body is already read and parsed."""

    content: bytes = b""
    value: Any = None

    async def body(self) -> bytes:
        """Return the body."""
        return self.content

    async def json(self) -> Any:
        """Return the parsed value of the body."""
        return self.value


class HubRoute(APIRoute):
    """A route that authenticates the caller before it reads the body, and limits the body before it is
    parsed."""

    @property
    def body_kind(self) -> TextKind | None:
        """Kind of the JSON body; None for a route without one."""
        return getattr(self.endpoint, _KIND, CONTROL) if self.body_field is not None else None

    def get_route_handler(self) -> Handler:
        """Return the handler of requests."""
        handle, needs, kind = super().get_route_handler(), needs_of(self.dependant), self.body_kind
        names = set(_names_of_query(self.dependant))
        _QUERY_NAMES.update(names)
        is_upload = self.path.rstrip("/").endswith(
            "/legacy"
        )  # twine and uv do not follow redirects of uploads

        async def admit(request: Request) -> Response:
            if not is_upload and may_be_misspelled(request) and (redirect := redirect_misspelled(request)):
                return redirect
            if misplaced := sorted((_QUERY_NAMES & set(request.query_params)) - names):
                raise _refuse_query(misplaced, names)
            if isinstance(needs, Needs) and kind is not None:
                await run_in_threadpool(needs, request)
            return await handle(request if kind is None else await _read(request, kind))

        return admit


class HubRouter(APIRouter):
    """A router whose routes are `HubRoute` objects."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=HubRoute, **options)


def find_foreign_routes(routes: Iterable[BaseRoute]) -> list[str]:
    """Return the paths of routes that are not a `HubRoute`, and so would read a body without limits."""
    originals = (context.original_route for context in iter_route_contexts(list(routes)))
    return [str(getattr(route, "path", route)) for route in originals if not isinstance(route, HubRoute)]


def _names_of_query(dependant: Dependant) -> Iterator[str]:
    """Yield the names of the query parameters of a route and its dependencies."""
    for field in dependant.query_params:
        yield from getattr(field.field_info.annotation, "model_fields", [field.alias])
    for dependency in dependant.dependencies:
        yield from _names_of_query(dependency)


def _refuse_query(misplaced: list[str], names: set[str]) -> HubProblem:
    """Return the problem of query parameters that only other routes have. Unknown names are ignored."""
    hint = (
        "it accepts " + ", ".join(f"`{name}`" for name in sorted(names))
        if names
        else "it accepts no parameters"
    )
    detail = f"this address does not accept the parameter {', '.join(f'`{name}`' for name in misplaced)}"
    return HubProblem(422, "invalid_request", detail, hint=hint)


async def _read(request: Request, kind: TextKind) -> Request:
    """Return the request with its JSON body, read within the limits of its kind."""
    refusal = HubProblem(413, "too_large", f"{kind.name} is larger than {kind.most_bytes:,} bytes")
    read = _ReadRequest(request.scope, request.receive)
    read.content = await read_body(request, kind.most_bytes, refusal)
    if read.content and _is_json(request.headers.get("content-type", "")):
        try:
            if len(read.content) <= _ON_THE_LOOP:
                read.value = read_json(read.content, kind)
            else:
                read.value = await run_in_threadpool(read_json, read.content, kind)
        except RefusedText as error:
            status, code = (413, "too_large") if error.too_large else (422, "invalid_request")
            raise HubProblem(status, code, f"the request does not match the API: {error}") from error
    return read


def _is_json(content_type: str) -> bool:
    message = email.message.Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (
        subtype == "json" or subtype.endswith("+json")
    )
