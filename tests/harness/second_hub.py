"""A second hub for a test, with its own database and storage."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx
from wander_hub.app import create_app
from wander_hub.database import Database
from wander_hub.rights.tokens import first_administrator
from wander_hub.settings import Settings
from wander_hub.storage import Storage


@asynccontextmanager
async def second_hub(folder, kind, request):
    """Provide another hub that has only an administrator."""
    storage_url = request.getfixturevalue("s3_url") if kind == "postgresql" else None
    settings = Settings(data=folder, bundled_packages=False, storage_url=storage_url)
    folder.mkdir()
    storage = Storage.open(settings.storage_url, folder / "objects")
    context = request.getfixturevalue("postgres").database() if kind == "postgresql" else None
    url = context.__enter__() if context else settings.resolved_database_url
    database = Database(url)
    database.migrate()
    with database.write() as session:
        token = first_administrator(session)
    app = create_app(settings, database=database, storage=storage)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://hub.test")
    try:
        async with app.router.lifespan_context(app), client:
            yield SimpleNamespace(
                client=client, database=database, storage=storage, settings=settings, tokens={"admin": token},
                auth=lambda user="admin": {"Authorization": f"Bearer {token}"},
            )  # fmt: skip
    finally:
        database.close()
        if context:
            context.__exit__(None, None, None)
