"""Pages of readers who are not signed in are kept until something changes that a page shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event, false, text, update
from wander_hub.database import _UNSHOWN_TABLES, Base, ContentRevision
from wander_hub.environments.models import Environment
from wander_hub.identity import HUB
from wander_hub.operation import tables  # noqa: F401 - registers every table
from wander_hub.web import anonymous

HTML = {"Accept": "text/html"}
PAGE = "/alice/reverse-text"
API = "/api/v1/environments/alice/reverse-text"
RUN = "01JRUN0000000000000000000A"


@pytest.fixture(autouse=True)
def one_span(monkeypatch):
    """Keep the tests within one span of time, at whose end pages are drawn again."""
    monkeypatch.setattr(anonymous, "SPAN_SECONDS", 10**12)


@contextmanager
def statements(hub) -> Iterator[list[str]]:
    """Collect the statements that the hub's sessions execute."""
    heard: list[str] = []

    def hear(connection, cursor, statement, *rest):
        heard.append(statement)

    event.listen(hub.database.engine, "before_cursor_execute", hear)
    try:
        yield heard
    finally:
        event.remove(hub.database.engine, "before_cursor_execute", hear)


def revision(hub) -> int:
    with hub.database.read(HUB) as session:
        return session.query(ContentRevision).one().number


async def changed_by(hub, method: str, path: str, body=None, user: str = "alice"):
    answer = await hub.client.request(method, path, json=body, headers=hub.auth(user))
    assert answer.status_code < 300, answer.text


async def test_a_page_is_rendered_again_only_after_a_change(hub, run_of, make_wheel):
    sha256 = await hub.publish()
    first = await hub.get(PAGE, headers=HTML)
    held = HTML | {"If-None-Match": first.headers["etag"]}
    with statements(hub) as heard:
        again, unchanged = await hub.get(PAGE, headers=HTML), await hub.get(PAGE, headers=held)
    assert (again.status_code, again.content, again.headers["etag"]) == (
        200,
        first.content,
        first.headers["etag"],
    )
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert [one for one in heard if "content_revision" not in one] == []
    assert again.headers["x-request-id"] != first.headers["x-request-id"]

    changes = {
        "a run": lambda: hub.post_run(*run_of(sha256)),
        "a version": lambda: hub.publish(make_wheel(version="0.2.0")),
        "a yank": lambda: changed_by(hub, "PUT", f"{API}/versions/0.1.0/yank", {"reason": "old"}),
        "a status": lambda: changed_by(hub, "PUT", f"{API}/status", {"status": "deprecated", "reason": "x"}),
    }
    tag = first.headers["etag"]
    for name, change in changes.items():
        await change()
        answer = await hub.get(PAGE, headers=HTML | {"If-None-Match": tag})
        assert answer.status_code == 200, name
        assert answer.headers["etag"] != tag, name
        tag = answer.headers["etag"]
    await changed_by(hub, "PUT", f"{API}/visibility", {"private": True})
    assert (await hub.get(PAGE, headers=HTML | {"If-None-Match": tag})).status_code == 404


async def test_a_statement_that_changes_no_row_leaves_pages_cached(hub):
    await hub.publish()
    before = revision(hub)
    with hub.database.write(HUB) as session:
        for table in Base.metadata.sorted_tables:
            session.execute(table.delete().where(false()))
    assert revision(hub) == before
    with hub.database.write(HUB) as session:
        session.execute(update(Environment).values(marks="x").returning(Environment.id))
    assert revision(hub) == before + 1


async def test_cached_pages_depend_on_user_and_headers(hub):
    await hub.publish()
    anonymous = await hub.get(PAGE, headers=HTML)
    tags = {anonymous.headers["etag"]}
    for headers in (
        HTML | {"Accept-Encoding": "identity"},
        HTML | {"Host": "hub.example"},
        {"Accept": "text/html,application/xhtml+xml"},
    ):
        answer = await hub.client.get(PAGE, headers=headers | {"If-None-Match": anonymous.headers["etag"]})
        assert answer.status_code == 200, headers
        tags.add(answer.headers.get("etag", repr(headers)))
    assert len(tags) == 4
    for credentials in (hub.auth(), {"Cookie": "other=1"}):
        answer = await hub.client.get(PAGE, headers=HTML | credentials)
        assert {"Cookie", "Authorization"} <= set(answer.headers["vary"].split(", "))
        assert answer.headers["etag"] != anonymous.headers["etag"]
    signed_in = await hub.client.get(PAGE, headers=HTML | hub.auth())
    assert signed_in.headers["cache-control"] == "private, no-store"


@pytest.mark.parametrize("path", ["/login", "/nothing/here", "/account", "/health"])
async def test_only_public_pages_are_cached(hub, path):
    for _ in range(2):
        answer = await hub.get(path, headers=HTML)
        assert "s-maxage" not in answer.headers.get("cache-control", "")


async def test_changes_that_pages_do_not_show_keep_the_entity_tag(hub):
    await hub.publish()
    before = revision(hub)
    await hub.client.post("/api/v1/tokens", json={"name": "more", "scopes": ["read"]}, headers=hub.auth())
    await hub.get(PAGE, headers=HTML | hub.auth())
    assert revision(hub) == before


def test_a_rolled_back_transaction_invalidates_nothing(hub):
    before = revision(hub)
    with hub.database.write() as session:
        session.execute(text("UPDATE users SET admin = NOT admin"))
        session.rollback()
    with hub.database.write() as session:
        session.execute(text("SELECT 1"))
    assert revision(hub) == before
    with hub.database.write() as session:
        session.execute(text("UPDATE users SET admin = admin"))
        session.execute(text("UPDATE users SET admin = admin"))
    assert revision(hub) == before + 1


def test_every_table_that_is_not_shown_exists():
    known = set(Base.metadata.tables) | {"alembic_version"}
    assert sorted(_UNSHOWN_TABLES - known) == []


async def test_cached_pages_use_limited_memory(hub, monkeypatch):
    await hub.publish()
    monkeypatch.setattr(anonymous, "_MOST_BYTES", 40_000)
    plain = HTML | {"Accept-Encoding": "identity"}
    sizes = [len((await hub.get(f"/?q=word{number}", headers=plain)).content) for number in range(12)]
    assert sum(sizes) > 40_000
    with statements(hub) as heard:
        await hub.get("/?q=word11", headers=plain)
    assert [one for one in heard if re.search("FROM environments", one)] == []
    with statements(hub) as heard:
        await hub.get("/?q=word0", headers=plain)
    assert heard
