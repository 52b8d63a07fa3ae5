"""Schema, sessions and concurrency."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from live_hub import hub_command
from sqlalchemy import inspect, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session
from wander_hub.database import (
    _MIGRATIONS_LOCK,
    Base,
    Database,
    UnreleasedDatabase,
    UtcDateTime,
    alembic_config,
    migrations_folder,
)
from wander_hub.environments import repository as environments
from wander_hub.rights.tokens import first_administrator
from wander_hub.upload.bundled import ensure_owner


def is_text_index(name: str | None, kind: str) -> bool:
    return kind == "table" and str(name).startswith("environment_search")


def test_models_equal_migrations(hub):
    with hub.database.engine.connect() as connection:
        command.check(alembic_config(connection))
        ours = {"compare_type": False, "include_name": lambda name, kind, _: not is_text_index(name, kind)}
        context = MigrationContext.configure(connection, opts=ours)
        assert compare_metadata(context, Base.metadata) == []


def test_migrations_can_be_reverted_and_applied_again(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'hub.db'}")
    database.migrate()
    tables = set(inspect(database.engine).get_table_names())
    with database.engine.execution_options(writes=True).begin() as connection:
        command.downgrade(alembic_config(connection), "base")
    assert inspect(database.engine).get_table_names() == ["alembic_version"]
    database.migrate()
    database.migrate()
    assert set(inspect(database.engine).get_table_names()) == tables
    database.close()


def test_a_hub_starts_on_a_newer_schema_with_a_warning(hub, caplog):
    with hub.database.engine.execution_options(writes=True).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9000'"))
    hub.database.migrate()
    assert hub.database.is_current()
    (line,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "newer release" in line.getMessage()


@pytest.mark.parametrize("revision", ["0001", "0043"])
def test_a_database_from_before_the_first_release_is_not_changed(hub, revision):
    with hub.database.engine.execution_options(writes=True).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :found"), {"found": revision})
    for attempt in (hub.database.migrate, hub.database.is_current):
        with pytest.raises(UnreleasedDatabase) as raised:
            attempt()
        assert revision in str(raised.value)
        assert "wander-hub backup" in raised.value.hint
        assert "wander-hub restore" in raised.value.hint


def test_migrations_are_found_in_a_checkout():
    assert (migrations_folder() / "env.py").is_file()


def test_sqlite_is_configured_for_a_server(sqlite_alone, hub):
    with hub.database.read() as session:
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert session.execute(text("PRAGMA foreign_keys")).scalar() == 1
        assert session.execute(text("PRAGMA busy_timeout")).scalar() == 15000


def test_naive_times_are_rejected_by_the_database(hub):
    from datetime import datetime

    with pytest.raises(ValueError, match="naive"):
        UtcDateTime().process_bind_param(datetime(2026, 1, 1), hub.database.engine.dialect)


async def test_relationships_are_never_loaded_lazily(hub):
    await hub.publish()
    with hub.database.read() as session:
        environment = environments.environment_named(session, "alice", "reverse-text")
        version = environments.version_of(session, environment, "0.1.0")
        with pytest.raises(InvalidRequestError, match="environment"):
            _ = version.environment


async def test_concurrent_uploads_of_one_version_have_one_winner(hub, make_wheel):
    specs = [make_wheel(summary=f"Candidate {number}.") for number in range(6)]
    answers = await asyncio.gather(*(hub.upload(spec.build(), spec.wheel_name) for spec in specs))
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 5
    winner = next(answer for answer in answers if answer.status_code == 200).json()
    stored = (await hub.get("/api/v1/environments/alice/reverse-text/versions/0.1.0")).json()
    assert stored["summary"] == winner["summary"]
    assert len(stored["files"]) == 1


async def test_concurrent_posts_of_one_run_are_one_run(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    answers = await asyncio.gather(*(hub.post_run(manifest, rollouts) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [201]
    assert (await hub.get("/api/v1/environments/alice/reverse-text")).json()["runs"] == 1


async def test_reads_continue_during_a_write(hub):
    await hub.publish()
    with hub.database.write() as session:
        session.execute(text("UPDATE users SET admin = admin"))
        answer = await hub.get("/api/v1/environments")
        assert len(answer.json()["data"]) == 1


async def test_a_page_needs_few_statements(hub, run_of):
    from sqlalchemy import event

    manifest, rollouts = run_of(await hub.publish())
    await hub.post_run(manifest, rollouts)
    counted: list[str] = []

    def count(connection, cursor, statement, *rest):
        counted.append(statement)

    event.listen(hub.database.engine, "before_cursor_execute", count)
    run = f"/runs/{manifest['run_id']}"
    environment = ("/alice/reverse-text", "/alice/reverse-text/leaderboard")
    for path in ("/", "/alice", *environment, run, f"{run}/rollouts/1"):
        counted.clear()
        answer = await hub.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 200
        queries = [one for one in counted if one.startswith("SELECT")]
        # Of an environment: seven of who uses it, and those of the rollout that it shows.
        assert len(queries) <= 30, (path, len(queries))
    event.remove(hub.database.engine, "before_cursor_execute", count)


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_deadlocked_transactions_are_retried(hub):
    both_hold_one, tries = threading.Barrier(2), []

    def rename(first: str, second: str) -> None:
        def work(session: Session) -> None:
            tries.append(first)
            for name in (first, second):
                session.execute(text("UPDATE users SET admin = NOT admin WHERE name = :name"), {"name": name})
                if len(tries) <= 2 and name == first:
                    both_hold_one.wait(30)

        hub.database.commit(work)

    with ThreadPoolExecutor(2) as threads:
        for ended in [threads.submit(rename, "alice", "bob"), threads.submit(rename, "bob", "alice")]:
            ended.result()
    assert len(tries) == 3
    with hub.database.read() as session:
        changed = session.execute(text("SELECT admin FROM users WHERE name IN ('alice', 'bob')"))
        assert changed.scalars().all() == [False, False]


@pytest.mark.full
def test_simultaneous_hubs_create_one_schema(postgres, tmp_path):
    command, environment = hub_command(tmp_path, "migrate")
    with postgres.database(migrated=False) as url:
        environment["WANDER_HUB_DATABASE_URL"] = url
        begun = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for _ in range(3)]
        ended = [(one.communicate()[1].decode(), one.returncode) for one in begun]
        assert [one for one in ended if one[1]] == []


def test_a_hub_waits_for_another_one_that_migrates(postgres, caplog):
    key = {"key": _MIGRATIONS_LOCK}
    with postgres.database() as url, ThreadPoolExecutor(1) as threads:
        database = Database(url)
        with database.engine.connect() as other:
            other.execute(text("SELECT pg_advisory_lock(:key)"), key)
            waiting = threads.submit(database.migrate)
            while "is migrating this database" not in caplog.text:
                assert not waiting.done()
            other.execute(text("SELECT pg_advisory_unlock(:key)"), key)
        waiting.result()
        database.migrate()  # which let go of it
        database.close()


@pytest.mark.parametrize(
    "database_kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True
)
def test_simultaneous_hubs_create_one_administrator(database):
    with ThreadPoolExecutor(8) as threads:
        made = [threads.submit(database.commit, first_administrator) for _ in range(4)]
        owned = [threads.submit(database.commit, ensure_owner) for _ in range(4)]
        assert [one.result() is not None for one in made].count(True) == 1
        assert [one.result() for one in owned] == [None] * 4
