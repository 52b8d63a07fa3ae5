"""Dependencies of routes: context, sessions, callers and permissions. Only this module commits.

Routes change data through `Context.commit`. Read sessions end before the response (`scope="function"`).
Dependencies that only look something up are `async`, because FastAPI runs all others in a thread.
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
_BASIC = "use any user name and a valid API token as the password, in the index URL, netrc file or keyring"
_FOR_JOBS = "is_open_to_jobs"
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True)
class Context:
    """The caller of a request, and the database, storage and settings that the request works with."""

    caller: Identity
    database: Database
    storage: Storage
    settings: Settings
    base_url: str = ""
    origin: audit.Origin | None = None
    """Origin for the audit log; None for a partial request, which is recorded when the whole is complete."""
    has_quota: bool = True
    """Whether quotas limit what is added. They must not keep the runs of a sealed set from readers."""

    def read(self) -> AbstractContextManager[Session]:
        """Open a read-only session that sees what the caller may see."""
        return self.database.read(self.caller)

    def commit(self, work: Callable[[Session], Result]) -> Result:
        """Run `work` in a writing session of the caller, and run it again if another transaction interfered.

        The same transaction adds the entry in the audit log.
        """
        if self.origin is not None:
            work = audit.recorded(work, self.origin)
        return self.database.commit(work, self.caller)

    @property
    def part(self) -> Context:
        """A copy of this context whose changes leave no audit entry."""
        return replace(self, origin=None)


class Wakeable(Protocol):
    """A worker that can be asked to look for jobs immediately."""

    def wake(self) -> None:
        """Look for jobs immediately."""


def database_of(request: Request) -> Database:
    """Return the hub's database."""
    database: Database = request.app.state.database
    return database


def base_url_of(request: Request) -> str:
    """Return the address under which users reach the hub, without a trailing slash."""
    settings: Settings = request.app.state.settings
    return (settings.public_url or str(request.base_url)).rstrip("/")


def context_of(request: Request, caller: Identity) -> Context:
    """Return the context of the caller's request."""
    state = request.app.state
    origin = origin_of(request, caller) if action_of(request.scope["endpoint"]) else None
    return Context(caller, state.database, state.storage, state.settings, base_url_of(request), origin)


def origin_of(request: Request, caller: Identity | None) -> audit.Origin:
    """Return the audit origin of a request; `caller` is None if the body authenticates the request."""
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
    """Name the action of a route in the audit log, such as `version.yank`. Every route that changes data
    needs a name."""

    def name(endpoint: Endpoint) -> Endpoint:
        vars(endpoint)[_ACTION] = action
        return endpoint

    return name


def part_of_upload(endpoint: Endpoint) -> Endpoint:
    """Mark a route that receives a part of an upload; the route that completes the upload is the one that is
    audited."""
    return audited("")(endpoint)


def open_to_jobs(endpoint: Endpoint) -> Endpoint:
    """Let the tokens of the hub's own jobs use a route to read their version."""
    vars(endpoint)[_FOR_JOBS] = True
    return endpoint


def action_of(endpoint: object) -> str | None:
    """Return the action under which the audit log records a route, or None if the route does not declare one.

    Routes that receive a part of an upload have an empty action, because only the completed upload is
    recorded.
    """
    return getattr(endpoint, _ACTION, None)


def read_session(request: Request) -> Iterator[Session]:
    """Yield a read-only session of the caller."""
    with database_of(request).read(optional_identity(request)) as session:
        yield session


def caller_of(request: Request) -> Identity | None:
    """Return the caller if the request was authenticated before, otherwise None."""
    known: Identity | None = getattr(request.state, "identity", None)
    return known


def optional_identity(request: Request) -> Identity | None:
    """Return the caller, or None for an anonymous request. A bad Bearer token is a 401 even for public data.

    Basic credentials may come from a netrc file or a proxy that serves several hosts. If they are invalid,
    the request continues as anonymous, and a later 401 reports what was wrong with them. The cookie of a
    browser is only valid for changes that come from the hub's own pages, and an expired browser session
    counts as anonymous.
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
        known = request.app.state.authenticate_browser(database_of(request), cookie)
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
            refusal.detail += " (sent as the password of Basic authentication)"
            refusal.hint = _BASIC
        raise
    if identity.only_version is not None and not getattr(request.scope["endpoint"], _FOR_JOBS, False):
        raise HubProblem(403, "token_scope", "the token of a job can only read what the job is about")
    request.state.identity = identity
    return identity


def require_identity(request: Request) -> Identity:
    """Return the caller; raise a 401 problem if the request is anonymous."""
    identity = optional_identity(request)
    if identity is None:
        hint = "run `wander login`, or set `WANDER_TOKEN`; in twine and uv, use the user `__token__`"
        raise HubProblem(
            401, "token_required", "this request needs an API token", hint=hint, headers=challenge(request)
        )
    return identity


class Needs:
    """Dependency of a route that changes data. Requires a token with the scope for this change.

    Every route that changes data must declare this dependency, or the hub does not start
    (`find_undeclared_routes`). The service checks whether the caller's role allows the change, in the
    transaction of the change.
    """

    def __init__(self, permission: Permission) -> None:
        self.permission: Permission = permission

    def __call__(self, request: Request) -> Identity:
        """Return the caller; raise a 401 problem without a token and a 403 problem if the scope is
        missing."""
        identity = require_identity(request)
        scope = scope_for(self.permission)
        if scope not in identity.token.scopes:
            scopes = ", ".join(f"`{granted}`" for granted in identity.token.scopes)
            raise HubProblem(
                403,
                "token_scope",
                f"this request needs a token of scope `{scope}`; this token has {scopes}",
                hint=f"create a token with `wander auth token new NAME --scope {scope}`",
            )
        return identity


class ByBody:
    """Marks a route whose body authenticates the request: with a password, or with a trusted publisher's
    token."""

    async def __call__(self) -> None:
        """Do nothing, because the route verifies the body."""


def wake_jobs(request: Request) -> None:
    """Ask this process's worker, if there is one, to look for jobs immediately."""
    worker: Wakeable | None = request.app.state.job_worker
    if worker is not None:
        worker.wake()


def find_mutating_routes(
    routes: Iterable[BaseRoute],
) -> Iterator[tuple[str, str, Needs | ByBody | None]]:
    """Yield method, path and declared permission of every route that may change data."""
    for context in iter_route_contexts(list(routes)):
        route = context.original_route
        needs = None
        if isinstance(route, APIRoute) and action_of(route.endpoint) is not None:
            needs = needs_of(route.dependant)
        for method in sorted(set(getattr(route, "methods", None) or ()) - cookies.SAFE_METHODS):
            yield method, context.path or "", needs


def find_undeclared_routes(routes: Iterable[BaseRoute]) -> list[str]:
    """Return the routes that may change data but do not declare a permission or an action."""
    return [f"{method} {path}" for method, path, needs in find_mutating_routes(routes) if needs is None]


def needs_of(dependant: Dependant) -> Needs | ByBody | None:
    """Return the permission that a route declares, or None."""
    for dependency in dependant.dependencies:
        declared = dependency.call if isinstance(dependency.call, Needs | ByBody) else needs_of(dependency)
        if declared is not None:
            return declared
    return None


def challenge(request: Request) -> dict[str, str]:
    """Return the header that makes pip, uv and twine send credentials."""
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
"""Id of a row, in the path of a request."""
Before = Annotated[int | None, Query(ge=1, le=_LARGEST, description="value of `next` in the previous page")]
ReadSession = Annotated[Session, Depends(read_session, scope="function")]
Caller = Annotated[Identity, Depends(require_identity)]
Manager = Annotated[Identity, Depends(Needs("manage"))]
HubDatabase = Annotated[Database, Depends(_state("database"))]
HubStorage = Annotated[Storage, Depends(_state("storage"))]
HubSettings = Annotated[Settings, Depends(_state("settings"))]
BaseUrl = Annotated[str, Depends(_base_url)]


def context_for(permission: Permission) -> Callable[..., Awaitable[Context]]:
    """Return a dependency that provides the context of a caller whose token has the permission."""

    async def give(request: Request, caller: Identity = Depends(Needs(permission))) -> Context:  # noqa: B008
        return context_of(request, caller)

    return give


ForPoster = Annotated[Context, Depends(context_for("results"))]
ForPublisher = Annotated[Context, Depends(context_for("publish"))]
ForMaintainer = Annotated[Context, Depends(context_for("maintain"))]
ForManager = Annotated[Context, Depends(context_for("manage"))]
