"""`wander-hub doctor`: check everything that a hub needs, and say what is wrong and how to fix it."""

from __future__ import annotations

import asyncio
import io
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlsplit

from sqlalchemy import text
from wander.boxes.backends import choose_backend
from wander.boxes.base import BoxSpec
from wander.errors import SandboxError

from wander_hub.database import Database, now
from wander_hub.http.health import free_bytes
from wander_hub.identity import HUB
from wander_hub.operation import job_queue
from wander_hub.settings import DATABASE, PREFIX, NoHub, Settings
from wander_hub.storage import Storage, close_hint, find_open_path
from wander_hub.verification.worker import missing_for_verification

_CLOCK_SECONDS = 5.0
_PROXY_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    check: str
    state: Literal["ok", "warning", "failed"]
    told: str


class Doubt(Exception):
    """Something works, but not as it should."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield the result of each check. A check that raises an exception has failed."""
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
        ("boxes", lambda: _look_at_boxes(settings)),
        ("jobs", lambda: _look_at_jobs(settings, database)),
    )
    for name, look in looks:
        try:
            yield Finding(name, "ok", look())
        except Doubt as doubt:
            yield Finding(name, "warning", str(doubt))
        except NoHub as error:
            yield Finding(name, "failed", f"{error}: {error.hint}")
        except Exception as error:  # noqa: BLE001 - every error is a result of the check
            reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            yield Finding(name, "failed", reason or type(error).__name__)
    database.close()


def _look_at_settings() -> str:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    variables = {name for name in os.environ if name.startswith(PREFIX)}
    if unknown := sorted(variables - known):
        names = ", ".join(f"`{name}`" for name in unknown)
        raise Doubt(f"these variables match no setting and are ignored: {names}")
    if not variables:
        return f"no variable `{PREFIX}...` is set, so the defaults apply"
    return f"{len(variables)} variable{'s are' if len(variables) != 1 else ' is'} set"


def _look_at_database(settings: Settings, database: Database) -> str:
    _require_hub(settings)
    if not database.is_current():
        raise RuntimeError("the schema does not match this release: run `wander-hub migrate`")
    with database.engine.execution_options(writes=True).connect() as connection:
        connection.execute(text("CREATE TABLE wander_doctor (id INTEGER)"))
        connection.rollback()  # the statement proves that the database is writable; nothing is kept
    return f"{database.engine.dialect.name} is writable and has the schema of this release"


def _require_hub(settings: Settings) -> None:
    if settings.database_url is None and not (settings.data / DATABASE).exists():
        raise NoHub(settings)


def _look_at_clock(database: Database) -> str:
    if database.engine.dialect.name != "postgresql":
        return f"it is {now():%Y-%m-%d %H:%M} UTC; the database is on the same machine"
    with database.engine.connect() as connection:
        there: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    apart = abs((now() - there.astimezone(UTC)).total_seconds())
    if apart > _CLOCK_SECONDS:
        skew = f"the clocks of this machine and of the database differ by {apart:.0f} s"
        raise RuntimeError(f"{skew}: set up NTP, because sessions, tokens and signed addresses need it")
    return f"{apart:.1f} s from the database's clock"


def _look_at_data_folder(settings: Settings) -> str:
    if (path := find_open_path(settings)) is not None:
        raise Doubt(f"other users of this machine can read `{path}`: {close_hint(path)}")
    return f"only the hub's user can access `{settings.data}`"


def _look_at_storage(settings: Settings) -> str:
    if settings.storage_url is None and not settings.data.is_dir():
        raise FileNotFoundError(f"there is no folder `{settings.data}`")
    storage, content = Storage.of(settings), secrets.token_bytes(32)
    sha256 = storage.put(io.BytesIO(content))
    try:
        if storage.read(sha256) != content:
            raise RuntimeError("the storage returned other bytes than were written")
    finally:
        storage.delete(sha256)
    return "an object was written, read and deleted"


def _look_at_disk(settings: Settings) -> str:
    free, least = free_bytes(settings), settings.min_free_bytes
    if free < least:
        raise RuntimeError(f"{free:,} bytes are free, less than `WANDER_HUB_MIN_FREE_BYTES` ({least:,})")
    return f"{free / 2**30:,.1f} GiB are free"


def _look_at_proxy(settings: Settings) -> str:
    if settings.public_url is None:
        return "`WANDER_HUB_PUBLIC_URL` is not set: the hub uses the address of each request"
    import httpx

    url = settings.public_url.rstrip("/")
    seen = httpx.get(f"{url}/live", timeout=_PROXY_SECONDS).raise_for_status().json()
    here = urlsplit(url)
    if seen.get("scheme") != here.scheme:
        raise RuntimeError(
            f"the hub sees requests to {url} as {seen.get('scheme')}: make the proxy send `X-Forwarded-Proto`"
        )
    address, stated = seen.get("address"), seen.get("forwarded_for")
    if stated not in (None, address):
        raise Doubt(
            f"the proxy reports {stated} as the visitor, but the hub does not trust the proxy: "
            f"start the hub with `FORWARDED_ALLOW_IPS={address}`"
        )
    if address in _LOOPBACK and here.hostname not in _LOOPBACK:
        raise Doubt(
            "all requests seem to come from this machine: make the proxy send `X-Forwarded-For`, and if it "
            "runs on another machine, add its address to `FORWARDED_ALLOW_IPS`"
        )
    return f"{url} reaches this hub over {here.scheme}"


def _look_at_jobs(settings: Settings, database: Database) -> str:
    _require_hub(settings)
    with database.read(HUB) as session:
        held_up = job_queue.find_held_up(session)
    if held_up is None:
        return "no failed or blocked jobs"
    numbers = ((held_up.waiting, "are waiting for the hub"), (held_up.failed, "failed"))
    counts = " and ".join(f"{number:,} {state}" for number, state in numbers if number)
    raise Doubt(f"{counts}: {held_up.error}; after fixing this, run `wander-hub retry`")


def _look_at_sandbox(settings: Settings) -> str:
    if settings.verification == "off" or not settings.serve_jobs:
        return "not needed, because this process does not replay runs"
    if (why := missing_for_verification(settings)) is not None:
        raise Doubt(f"the hub cannot replay posted runs: {why}")
    if settings.verification == "unconfined":
        raise Doubt("environment code runs as the hub's own user (`WANDER_HUB_VERIFICATION=unconfined`)")
    return "environment code runs in a sandbox"


def _look_at_boxes(settings: Settings) -> str:
    if settings.boxes == "off":
        return (
            "the hub starts no boxes, so runs of environments with a shell get at most the level `complete` "
            "(`WANDER_HUB_BOXES=off`)"
        )
    try:
        backend = asyncio.run(_start_box(settings.boxes))
    except SandboxError as error:
        hint = f"; {error.hint}" if error.hint else ""
        raise Doubt(f"the hub cannot replay runs of environments with a shell: {error}{hint}") from error
    return f"a box started, and a command ran in it ({backend})"


async def _start_box(name: str) -> str:
    """Start a box over the system folders and run a command in it. Returns the name of the backend."""
    backend = choose_backend(BoxSpec(), name)
    box = await backend.start(BoxSpec())
    try:
        result = await box.exec("true", seconds=10)
    finally:
        await box.stop()
    if result.exit_status:
        raise SandboxError(f"a command in a box ended with status {result.exit_status}: {result.output}")
    return backend.name
