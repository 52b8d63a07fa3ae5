"""Routes of the hub: who may, then how much, then the body.

FastAPI reads and parses a body before it asks who sends it. A `HubRoute` asks first, and reads a JSON body by
the limits of its kind (`wander.wire.gate`). Other routes read their body by `bodies.read_pieces`, after their
dependencies were asked. A route that does neither gets an empty body (`bodies.arriving`).
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
from wander.wire.gate import CONTROL, Refused, TextKind, read_json

from wander_hub.http.bodies import read_body
from wander_hub.http.boundary import Needs, needs_of
from wander_hub.http.problems import HubProblem
from wander_hub.http.spelling import may_be_misspelt, redirect_misspelt

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_KIND = "body_kind"
_QUERY_NAMES = set[str]()
"""The names that some route of the hub takes in its query."""
_ON_THE_LOOP = 16 * 1024
"""Bytes of JSON up to which a thread costs more than parsing."""


def takes(kind: TextKind) -> Callable[[Endpoint], Endpoint]:
    """Set the kind of a route's JSON body, for one that needs more than `CONTROL` allows."""

    def mark(endpoint: Endpoint) -> Endpoint:
        vars(endpoint)[_KIND] = kind
        return endpoint

    return mark


class _ReadRequest(Request):
    """A request whose JSON body was read and parsed."""

    content: bytes = b""
    value: Any = None

    async def body(self) -> bytes:
        """Return the body."""
        return self.content

    async def json(self) -> Any:
        """Return the value of the body."""
        return self.value


class HubRoute(APIRoute):
    """A route that checks its caller before the body, and the size of the body before it is parsed."""

    @property
    def body_kind(self) -> TextKind | None:
        """The kind of the JSON body; None for a route without one."""
        return getattr(self.endpoint, _KIND, CONTROL) if self.body_field is not None else None

    def get_route_handler(self) -> Handler:
        """Return what answers a request."""
        handle, needs, kind = super().get_route_handler(), needs_of(self.dependant), self.body_kind
        names = set(_names_of_query(self.dependant))
        _QUERY_NAMES.update(names)
        is_upload = self.path.rstrip("/").endswith("/legacy")  # twine and uv follow no redirect of one

        async def admit(request: Request) -> Response:
            if not is_upload and may_be_misspelt(request) and (redirect := redirect_misspelt(request)):
                return redirect
            if misplaced := sorted((_QUERY_NAMES & set(request.query_params)) - names):
                raise _refuse_query(misplaced, names)
            if isinstance(needs, Needs) and kind is not None:
                await run_in_threadpool(needs, request)
            return await handle(request if kind is None else await _read(request, kind))

        return admit


class HubRouter(APIRouter):
    """A router of such routes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=HubRoute, **options)


def find_foreign_routes(routes: Iterable[BaseRoute]) -> list[str]:
    """Return the paths of routes that would read a body without its limits."""
    found = (context.original_route for context in iter_route_contexts(list(routes)))
    return [str(getattr(route, "path", route)) for route in found if not isinstance(route, HubRoute)]


def _names_of_query(dependant: Dependant) -> Iterator[str]:
    """Yield the names that a route takes in its query, itself or by what it depends on."""
    for field in dependant.query_params:
        yield from getattr(field.field_info.annotation, "model_fields", [field.alias])
    for one in dependant.dependencies:
        yield from _names_of_query(one)


def _refuse_query(misplaced: list[str], names: set[str]) -> HubProblem:
    """Refuse a query for something that only other routes do; names that no route takes are ignored."""
    hint = "it takes " + ", ".join(f"`{one}`" for one in sorted(names)) if names else "it takes no query"
    detail = f"this address takes no {', '.join(f'`{one}`' for one in misplaced)}"
    return HubProblem(422, "invalid_request", detail, hint=hint)


async def _read(request: Request, kind: TextKind) -> Request:
    """Return a request with its body, read within the limits of its kind."""
    refusal = HubProblem(413, "too_large", f"{kind.name} has over {kind.most_bytes:,} bytes")
    read = _ReadRequest(request.scope, request.receive)
    read.content = await read_body(request, kind.most_bytes, refusal)
    if read.content and _is_json(request.headers.get("content-type", "")):
        try:
            if len(read.content) <= _ON_THE_LOOP:
                read.value = read_json(read.content, kind)
            else:
                read.value = await run_in_threadpool(read_json, read.content, kind)
        except Refused as error:
            status, code = (413, "too_large") if error.too_large else (422, "invalid_request")
            raise HubProblem(status, code, f"the request does not fit the API: {error}") from error
    return read


def _is_json(content_type: str) -> bool:
    message = email.message.Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (
        subtype == "json" or subtype.endswith("+json")
    )
