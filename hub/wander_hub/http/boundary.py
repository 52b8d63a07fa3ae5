"""The request boundary: what routes depend on. Nothing else commits.

Routes that change something do it by `Context.commit`; sessions that read end before the answer is sent
(`scope="function"`). What only looks something up is `async`, since FastAPI sends every other
dependency through a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts
from sqlalchemy.orm import Session
from starlette.routing import BaseRoute

from wander_hub import audit, security
from wander_hub.database import Database, Result
from wander_hub.http import cookies
from wander_hub.http.problems import HubProblem, refused_credentials
from wander_hub.identity import Identity, Permission, scope_for
from wander_hub.settings import Settings
from wander_hub.storage import Storage

_ACTION = "audited_action"
_BASIC = "in the index's address, netrc file or keyring, give any user name, and a live API token as password"
_FOR_JOBS = "is_open_to_jobs"
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True)
class Context:
    """Who sends something to the hub, and what the hub keeps it with."""

    caller: Identity
    database: Database
    storage: Storage
    settings: Settings
    base_url: str = ""
    origin: audit.Origin | None = None
    """What the audit log tells of it; None for a part of something that is told when it is whole."""

    def read(self) -> AbstractContextManager[Session]:
        """Give a session that sees what the caller may see, and whose work is thrown away."""
        return self.database.read(self.caller)

    def commit(self, work: Callable[[Session], Result]) -> Result:
        """Do `work` in the caller's writing session, again when another transaction got in between.

        The same transaction leaves the entry in the audit log.
        """
        if self.origin is not None:
            work = audit.recorded(work, self.origin)
        return self.database.commit(work, self.caller)

    @property
    def part(self) -> Context:
        """The same, for a step that leaves no entry of its own."""
        return replace(self, origin=None)


class Wakeable(Protocol):
    """A worker that can be told to look for jobs now."""

    def wake(self) -> None:
        """Look for jobs now."""


def database_of(request: Request) -> Database:
    """Return the hub's database."""
    database: Database = request.app.state.database
    return database


def base_url_of(request: Request) -> str:
    """Return the address users reach the hub under, without a slash at its end."""
    settings: Settings = request.app.state.settings
    return (settings.public_url or str(request.base_url)).rstrip("/")


def context_of(request: Request, caller: Identity) -> Context:
    """Return what a request of the caller works with."""
    state = request.app.state
    origin = origin_of(request, caller) if action_of(request.scope["endpoint"]) else None
    return Context(caller, state.database, state.storage, state.settings, base_url_of(request), origin)


def origin_of(request: Request, caller: Identity | None) -> audit.Origin:
    """Return what the audit log tells of a request; without a caller, of one whose body says who asks."""
    return audit.Origin(
        action=action_of(request.scope["endpoint"]) or "",
        actor=caller.user if caller is not None else "",
        token=caller.token.prefix if caller is not None else None,
        address=request.client.host if request.client is not None else None,
        request_id=request.scope["state"]["request_id"],
        params=request.path_params,
        detail={"claims": dict(caller.claims)} if caller is not None and caller.claims else {},
    )


def audited(action: str) -> Callable[[Endpoint], Endpoint]:
    """Name what a route does in the audit log: `version.yank`. Each that changes something has one."""

    def name(endpoint: Endpoint) -> Endpoint:
        vars(endpoint)[_ACTION] = action
        return endpoint

    return name


def part_of_another(endpoint: Endpoint) -> Endpoint:
    """Mark a route that only takes in a part of what another route keeps, and tells, once it is whole."""
    return audited("")(endpoint)


def open_to_jobs(endpoint: Endpoint) -> Endpoint:
    """Let the tokens of the hub's own jobs use a route, which shows them the version that they are about."""
    vars(endpoint)[_FOR_JOBS] = True
    return endpoint


def action_of(endpoint: object) -> str | None:
    """Return what a route says it does; nothing for a part of something, None where it says nothing."""
    return getattr(endpoint, _ACTION, None)


def read_session(request: Request) -> Iterator[Session]:
    """Give a session that cannot change anything for good."""
    with database_of(request).read(optional_identity(request)) as session:
        yield session


def caller_of(request: Request) -> Identity | None:
    """Return the caller as far as somebody asked for one before; None for nobody."""
    known: Identity | None = getattr(request.state, "identity", None)
    return known


def optional_identity(request: Request) -> Identity | None:
    """Return the caller, None for an anonymous one; a bad Bearer token is a 401 even where none is needed.

    Basic credentials come from netrc files and proxies too, for hosts of which the hub is only one. If they
    are not good, whatever is public can still be read; a 401 then says what was wrong with them.

    A browser says who it is by its cookie, which is good for changes from the hub's own pages alone; one
    whose session is over is anybody's.
    """
    known = caller_of(request)
    if known is not None:
        return known
    header = request.headers.get("authorization")
    if header is not None and refused_credentials(request) is None:
        try:
            return _authenticate(request, header)
        except HubProblem as refusal:
            is_bearer = header.strip().lower().startswith("bearer ")
            if refusal.status != 401 or is_bearer or request.method not in cookies.SAFE_METHODS:
                raise
            request.state.refused_credentials = refusal
    if cookie := cookies.read_cookie(request, base_url_of(request)):
        known = request.app.state.authenticate_browser(
            database_of(request), request.app.state.settings, cookie
        )
        if known is not None:
            cookies.require_own_page(request, base_url_of(request))
        request.state.identity = known
    return known


def _authenticate(request: Request, header: str) -> Identity | None:
    try:
        secret = security.token_from_header(header)
    except ValueError as error:
        raise HubProblem(401, "bad_token", str(error), hint=_BASIC, headers=challenge(request)) from error
    if secret is None:
        return None
    try:
        owner = request.path_params.get("owner")
        identity: Identity = request.app.state.authenticate(database_of(request), secret, owner)
    except HubProblem as refusal:
        refusal.headers = challenge(request)
        if not header.strip().lower().startswith("bearer "):
            refusal.detail += ", which was sent as the password of Basic authentication"
            refusal.hint = _BASIC
        raise
    if identity.only_version is not None and not getattr(request.scope["endpoint"], _FOR_JOBS, False):
        raise HubProblem(403, "token_scope", "the token of a job reads nothing but what the job is about")
    request.state.identity = identity
    return identity


def require_identity(request: Request) -> Identity:
    """Return the caller; raise a 401 when no token was sent."""
    identity = optional_identity(request)
    if identity is None:
        hint = "run `wander login`, or set `WANDER_TOKEN`; twine and uv take user `__token__` with the token"
        raise HubProblem(
            401, "token_required", "this needs an API token", hint=hint, headers=challenge(request)
        )
    return identity


class Needs:
    """What a route that changes something demands: a caller whose token is meant for it.

    Every such route has one among its dependencies, or the hub does not start (`undeclared_routes`). Whether
    the caller's role allows it is for the service to decide, in the transaction that makes the change.
    """

    def __init__(self, permission: Permission) -> None:
        self.permission: Permission = permission

    def __call__(self, request: Request) -> Identity:
        """Return the caller; raise a 401 without a token, a 403 for one of another scope."""
        identity = require_identity(request)
        scope = scope_for(self.permission)
        if scope not in identity.token.scopes:
            scopes = ", ".join(f"`{one}`" for one in identity.token.scopes)
            raise HubProblem(
                403,
                "token_scope",
                f"this needs a token of scope `{scope}`; this one has {scopes}",
                hint=f"make one with `wander auth token new NAME --scope {scope}`",
            )
        return identity


class ByBody:
    """Marks a route whose body is what proves who asks: a password, or a trusted publisher's token."""

    async def __call__(self) -> None:
        """Ask nothing here: the route verifies the body."""


def wake_jobs(request: Request) -> None:
    """Have this process's worker look for jobs now, if it has one."""
    worker: Wakeable | None = request.app.state.job_worker
    if worker is not None:
        worker.wake()


def find_mutating_routes(
    routes: Iterable[BaseRoute],
) -> Iterator[tuple[str, str, Needs | ByBody | None]]:
    """Yield method, path and declared permission of every route that may change something."""
    for context in iter_route_contexts(list(routes)):
        route = context.original_route
        needs = None
        if isinstance(route, APIRoute) and action_of(route.endpoint) is not None:
            needs = needs_of(route.dependant)
        for method in sorted(set(getattr(route, "methods", None) or ()) - cookies.SAFE_METHODS):
            yield method, context.path or "", needs


def find_undeclared_routes(routes: Iterable[BaseRoute]) -> list[str]:
    """Return the routes that may change something and do not say who may, or what they do."""
    return [f"{method} {path}" for method, path, needs in find_mutating_routes(routes) if needs is None]


def needs_of(dependant: Dependant) -> Needs | ByBody | None:
    """Return what a route demands of its caller."""
    for one in dependant.dependencies:
        found = one.call if isinstance(one.call, Needs | ByBody) else needs_of(one)
        if found is not None:
            return found
    return None


def challenge(request: Request) -> dict[str, str]:
    """Return the header that makes pip, uv and twine send their credentials."""
    scheme = "Bearer" if request.url.path.startswith("/api/") else "Basic"
    return {"WWW-Authenticate": f'{scheme} realm="wander"'}


def _state(name: str) -> Callable[[Request], Awaitable[Any]]:
    async def look_up(request: Request) -> Any:
        return getattr(request.app.state, name)

    return look_up


async def _base_url(request: Request) -> str:
    return base_url_of(request)


_LARGEST = 2**31 - 1
Number = Annotated[int, Path(ge=1, le=_LARGEST)]
"""Of a row, in the path of a request."""
Before = Annotated[int | None, Query(ge=1, le=_LARGEST, description="`next` of the page before")]
ReadSession = Annotated[Session, Depends(read_session, scope="function")]
Caller = Annotated[Identity, Depends(require_identity)]
Manager = Annotated[Identity, Depends(Needs("manage"))]
HubDatabase = Annotated[Database, Depends(_state("database"))]
HubStorage = Annotated[Storage, Depends(_state("storage"))]
HubSettings = Annotated[Settings, Depends(_state("settings"))]
BaseUrl = Annotated[str, Depends(_base_url)]


def context_for(permission: Permission) -> Callable[..., Awaitable[Context]]:
    """Return the dependency that gives the context of a caller whose token is meant for this."""

    async def give(request: Request, caller: Identity = Depends(Needs(permission))) -> Context:  # noqa: B008
        return context_of(request, caller)

    return give


ForPoster = Annotated[Context, Depends(context_for("results"))]
ForPublisher = Annotated[Context, Depends(context_for("publish"))]
ForMaintainer = Annotated[Context, Depends(context_for("maintain"))]
ForManager = Annotated[Context, Depends(context_for("manage"))]
