"""Looks at all that a hub needs, and says what is wrong and what to do about it."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlsplit

from sqlalchemy import text

from wander_hub.database import Database, now
from wander_hub.http.health import free_bytes
from wander_hub.identity import HUB
from wander_hub.operation import job_queue
from wander_hub.settings import Settings
from wander_hub.storage import Storage, close_hint, find_open_path
from wander_hub.verification.worker import missing_for_verification

_PREFIX = "WANDER_HUB_"
_CLOCK_SECONDS = 5.0
_PROXY_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Finding:
    """What came of one look."""

    check: str
    state: Literal["ok", "warning", "failed"]
    told: str


class Doubt(Exception):
    """Something that works and is not as it should be."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what each look finds; a look that raises has failed."""
    database = Database(settings.resolved_database_url)
    looks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("settings", _look_at_settings),
        ("database", lambda: _look_at_database(settings, database)),
        ("clock", lambda: _look_at_clock(database)),
        ("data folder", lambda: _look_at_data_folder(settings)),
        ("storage", lambda: _look_at_storage(settings)),
        ("disk", lambda: _look_at_disk(settings)),
        ("proxy", lambda: _look_at_proxy(settings)),
        ("sandbox", lambda: _look_at_sandbox(settings)),
        ("jobs", lambda: _look_at_jobs(database)),
    )
    for name, look in looks:
        try:
            yield Finding(name, "ok", look())
        except Doubt as doubt:
            yield Finding(name, "warning", str(doubt))
        except Exception as error:  # noqa: BLE001 - each of them is what was looked for
            said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            yield Finding(name, "failed", said or type(error).__name__)
    database.close()


def _look_at_settings() -> str:
    known = {_PREFIX + name.upper() for name in Settings.model_fields}
    given = {name for name in os.environ if name.startswith(_PREFIX)}
    if unknown := sorted(given - known):
        raise Doubt(f"no setting has the name {', '.join(f'`{one}`' for one in unknown)}: it is not read")
    return f"{len(given)} variable{'s are' if len(given) != 1 else ' is'} set"


def _look_at_database(settings: Settings, database: Database) -> str:
    if settings.database_url is None and not (settings.data / "hub.db").exists():
        raise FileNotFoundError(f"there is no hub in `{settings.data}`: `wander-hub serve` begins one")
    if not database.is_current():
        raise RuntimeError("the schema is not that of this release: run `wander-hub migrate`")
    with database.engine.execution_options(writes=True).connect() as connection:
        connection.execute(text("CREATE TABLE wander_doctor (id INTEGER)"))
        connection.rollback()  # it could be written; nothing is
    return f"{database.engine.dialect.name} can be written, with the schema of this release"


def _look_at_clock(database: Database) -> str:
    if database.engine.dialect.name != "postgresql":
        return f"it is {now():%Y-%m-%d %H:%M} UTC here, where the database is too"
    with database.engine.connect() as connection:
        there: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    apart = abs((now() - there.astimezone(UTC)).total_seconds())
    if apart > _CLOCK_SECONDS:
        said = f"this machine and the database are {apart:.0f} s apart"
        raise RuntimeError(f"{said}: sessions, tokens and signed addresses need NTP")
    return f"{apart:.1f} s from the database's"


def _look_at_data_folder(settings: Settings) -> str:
    if (path := find_open_path(settings)) is not None:
        raise Doubt(f"other users of this machine can read `{path}`: {close_hint(path)}")
    return f"`{settings.data}` is for the hub's user alone"


def _look_at_storage(settings: Settings) -> str:
    if settings.storage_url is None and not settings.data.is_dir():
        raise FileNotFoundError(f"there is no folder `{settings.data}`")
    storage, content = Storage.of(settings), secrets.token_bytes(32)
    sha256 = storage.put(io.BytesIO(content))
    try:
        if storage.read(sha256) != content:
            raise RuntimeError("other bytes come back than were written")
    finally:
        storage.delete(sha256)
    return "an object was written, read and deleted"


def _look_at_disk(settings: Settings) -> str:
    free, least = free_bytes(settings), settings.min_free_bytes
    if free < least:
        raise RuntimeError(f"{free:,} bytes are free, under `WANDER_HUB_MIN_FREE_BYTES` ({least:,})")
    return f"{free / 2**30:,.1f} GiB are free"


def _look_at_proxy(settings: Settings) -> str:
    if settings.public_url is None:
        return "no `WANDER_HUB_PUBLIC_URL`: the hub is asked under the address of each request"
    import httpx

    url = settings.public_url.rstrip("/")
    seen = httpx.get(f"{url}/live", timeout=_PROXY_SECONDS).raise_for_status().json()
    here = urlsplit(url)
    if seen.get("scheme") != here.scheme:
        raise RuntimeError(
            f"the hub takes requests to {url} for {seen.get('scheme')}: pass `X-Forwarded-Proto`"
        )
    address, stated = seen.get("address"), seen.get("forwarded_for")
    if stated not in (None, address):
        raise Doubt(
            f"the proxy names {stated} as the visitor, and the hub does not believe it: "
            f"start the hub with `FORWARDED_ALLOW_IPS={address}`"
        )
    if address in _LOOPBACK and here.hostname not in _LOOPBACK:
        raise Doubt(
            "every request seems to come from this machine: have the proxy pass `X-Forwarded-For`, and name "
            "it in `FORWARDED_ALLOW_IPS` where it runs elsewhere"
        )
    return f"{url} leads here, over {here.scheme}"


def _look_at_jobs(database: Database) -> str:
    with database.read(HUB) as session:
        found = job_queue.find_held_up(session)
    if found is None:
        return "none waits for the hub"
    numbers = ((found.waiting, "wait for the hub"), (found.failed, "were given up"))
    told = " and ".join(f"{number:,} {what}" for number, what in numbers if number)
    raise Doubt(f"{told}: {found.error}; once that is mended, run `wander-hub retry`")


def _look_at_sandbox(settings: Settings) -> str:
    if settings.verification == "off" or not settings.serve_jobs:
        return "not needed: this process replays no runs"
    if (why := missing_for_verification(settings)) is not None:
        raise Doubt(f"posted runs are not played again: {why}")
    if settings.verification == "unconfined":
        raise Doubt("environments' code runs as the hub's own user (`WANDER_HUB_VERIFICATION=unconfined`)")
    return "environments' code is confined"
