"""The request boundary: what routes depend on. Nothing else commits.

Sessions end before the answer is sent (`scope="function"`), so a failed commit is an error answer and never
a success that was not kept. What only looks something up is `async`, since FastAPI sends every other
dependency through a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from wander_hub import security
from wander_hub.accounts import service
from wander_hub.accounts.schemas import Identity
from wander_hub.database import Database
from wander_hub.problems import HubProblem
from wander_hub.settings import Settings
from wander_hub.storage import Storage


def settings_of(request: Request) -> Settings:
    """Return the hub's settings."""
    settings: Settings = request.app.state.settings
    return settings


def database_of(request: Request) -> Database:
    """Return the hub's database."""
    database: Database = request.app.state.database
    return database


def storage_of(request: Request) -> Storage:
    """Return the hub's storage."""
    storage: Storage = request.app.state.storage
    return storage


def base_url_of(request: Request) -> str:
    """Return the address users reach the hub under, without a slash at its end."""
    return (settings_of(request).public_url or str(request.base_url)).rstrip("/")


def read_session(request: Request) -> Iterator[Session]:
    """Give a session that cannot change anything for good."""
    with database_of(request).read() as session:
        yield session


def write_session(request: Request) -> Iterator[Session]:
    """Give a session that commits when the route returns."""
    with database_of(request).write() as session:
        yield session


def optional_identity(request: Request) -> Identity | None:
    """Return the caller, None for an anonymous one; a bad token is a 401 even where none is needed."""
    secret = security.token_from_header(request.headers.get("authorization"))
    if secret is None:
        return None
    try:
        return service.authenticate(database_of(request), secret)
    except HubProblem as refusal:
        refusal.headers = challenge(request)
        raise


def required_identity(request: Request) -> Identity:
    """Return the caller; raise a 401 when no token was sent."""
    identity = optional_identity(request)
    if identity is None:
        hint = "run `wander login`, or set `WANDER_TOKEN`; twine and uv take user `__token__` with the token"
        raise HubProblem(
            401, "token_required", "this needs an API token", hint=hint, headers=challenge(request)
        )
    return identity


def challenge(request: Request) -> dict[str, str]:
    """Return the header that makes pip, uv and twine send their credentials."""
    scheme = "Bearer" if request.url.path.startswith("/api/") else "Basic"
    return {"WWW-Authenticate": f'{scheme} realm="wander"'}


async def _settings(request: Request) -> Settings:
    return settings_of(request)


async def _database(request: Request) -> Database:
    return database_of(request)


async def _storage(request: Request) -> Storage:
    return storage_of(request)


async def _base_url(request: Request) -> str:
    return base_url_of(request)


ReadSession = Annotated[Session, Depends(read_session, scope="function")]
WriteSession = Annotated[Session, Depends(write_session, scope="function")]
Caller = Annotated[Identity, Depends(required_identity)]
HubDatabase = Annotated[Database, Depends(_database)]
HubStorage = Annotated[Storage, Depends(_storage)]
HubSettings = Annotated[Settings, Depends(_settings)]
BaseUrl = Annotated[str, Depends(_base_url)]
