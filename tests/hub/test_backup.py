"""A hub is copied while it runs and comes back the same, on either database, also after a kill in between."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
import zstandard
from archive_forge import WHEEL_NAME, wheel_of
from sqlalchemy import inspect, text
from staged_uploads import StagedUpload
from wander_hub.app import create_app
from wander_hub.database import UNRELEASED_REVISION, Database
from wander_hub.fsck import check as fsck
from wander_hub.http.problems import HubProblem
from wander_hub.operation.backup import ROWS, back_up, restore
from wander_hub.settings import Settings
from wander_hub.storage import Storage

PAGES = (
    "/alice/simple/",
    "/alice/simple/reverse-text/",
    "/alice/reverse-text",
    "/api/v1/environments",
    "/api/v1/environments/alice/reverse-text",
    "/api/v1/runs/01JRUN0000000000000000000A",
    "/api/v1/runs/01JRUN0000000000000000000A/rollouts",
)


@contextmanager
def empty(folder, kind, request):
    """Give the database, storage and settings of a hub that was never started."""
    settings = Settings(data=folder, bundled_packages=False)
    folder.mkdir()
    storage = Storage.open(None, folder / "objects")
    if kind == "postgresql":
        with request.getfixturevalue("postgres").database() as url:
            database = Database(url)
            yield database, storage, settings
            database.close()
    else:
        database = Database(settings.resolved_database_url)
        yield database, storage, settings
        database.close()


async def pages(client: httpx.AsyncClient) -> dict[str, bytes]:
    found = {}
    for path in PAGES:
        answer = await client.get(path, headers={"Accept": "text/html, application/json;q=0.9"})
        assert answer.status_code == 200, path
        found[path] = answer.content
    return found


async def test_a_backup_made_under_load_is_restored_exactly(
    hub, run_of, make_wheel, tmp_path, database_kind, request
):
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    wheel = make_wheel()
    assert (await hub.get(f"/alice/files/reverse-text/{wheel.wheel_name}")).status_code == 200
    assert hub.client._transport.app.state.downloads.flush() == 1
    before, folder = await pages(hub.client), tmp_path / "backup"
    storage = hub.client._transport.app.state.storage

    async def publish_more() -> None:
        for number in range(8):
            await hub.publish(make_wheel(name=f"other-{number}", files={f"other_{number}.py": b"x = 1\n"}))

    load = asyncio.create_task(publish_more())
    await asyncio.to_thread(back_up, hub.database, storage, folder)
    await load
    for kind in sorted({"sqlite", database_kind}):
        with empty(tmp_path / f"restored-{kind}", kind, request) as (database, objects, settings):
            assert restore(database, objects, folder)["rows"] > 20
            assert list(fsck.find_mismatches(database, objects)) == []
            with database.read() as session:
                assert session.scalar(text("SELECT count(*) FROM environment_search")) >= 1
            app = create_app(settings, database=database, storage=objects)
            transport = httpx.ASGITransport(app=app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://hub.test") as client,
            ):
                again = await pages(client)
                assert {path: again[path] for path in PAGES if path not in (PAGES[0], PAGES[3])} == {
                    path: before[path] for path in PAGES if path not in (PAGES[0], PAGES[3])
                }
                search = (await client.get("/api/v1/environments?q=reverse")).json()
                assert "reverse-text" in [one["name"] for one in search["data"]]
                spec = make_wheel(version="0.9.0")
                files = {"content": (spec.wheel_name, spec.build(), "application/octet-stream")}
                sent = await client.post("/alice/legacy/", files=files, headers=hub.auth())
                assert sent.status_code == 200, "tokens are good, and new rows get new numbers"


async def test_a_backup_with_the_previous_schema_is_restored(hub, run_of, tmp_path, request):
    """It has a table and a column more, and leaves values out that this release derives."""
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    before, folder = await pages(hub.client), tmp_path / "backup"
    back_up(hub.database, hub.client._transport.app.state.storage, folder)
    lines = zstandard.ZstdDecompressor().stream_reader((folder / ROWS).read_bytes()).read().splitlines()
    rows, columns = [json.loads(line) for line in lines[:-1]], list[str]()
    rows[0]["revision"] = UNRELEASED_REVISION
    absent = {"brief", "in_namespace"}
    for row in rows[1:]:
        if isinstance(row, dict):
            columns = row["columns"]
            row["columns"] = [*columns, "search_text"]
        else:
            row[:] = [None if name in absent else value for name, value in zip(columns, row, strict=True)]
            row.append("")
    rows += [{"table": "search_spellings", "columns": ["key", "scope", "word"]}, ["rverse", 0, "reverse"]]
    body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    end = json.dumps({"sha256": hashlib.sha256(body).hexdigest(), "rows": len(rows)}).encode() + b"\n"
    (folder / ROWS).write_bytes(zstandard.ZstdCompressor().compress(body + end))
    with empty(tmp_path / "restored", "sqlite", request) as (database, objects, settings):
        restore(database, objects, folder)
        assert list(fsck.find_mismatches(database, objects)) == []
        app = create_app(settings, database=database, storage=objects)
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://hub.test") as client,
        ):
            again = await pages(client)
    assert again[PAGES[5]] == before[PAGES[5]]
    assert again[PAGES[1]] == before[PAGES[1]]


async def test_a_killed_backup_resumes_and_a_damaged_one_is_rejected(hub, run_of, tmp_path, monkeypatch):
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    storage, folder = hub.client._transport.app.state.storage, tmp_path / "backup"
    kept = Storage.keep

    def die_after_one(self, *given) -> None:
        kept(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "keep", die_after_one)
        with pytest.raises(KeyboardInterrupt):
            back_up(hub.database, storage, folder)
    assert not (folder / ROWS).exists()
    whole = back_up(hub.database, storage, folder)
    assert whole["objects"] == len(list(storage.objects())) > 1
    with empty(tmp_path / "restored", "sqlite", None) as (database, objects, _):
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "keep", die_after_one)
            with pytest.raises(KeyboardInterrupt):
                restore(database, objects, folder)
        rows = folder / ROWS
        good = rows.read_bytes()
        rows.write_bytes(good[: len(good) // 2])
        with pytest.raises((HubProblem, ValueError)):
            restore(database, objects, folder)
        rows.write_bytes(good)
        assert restore(database, objects, folder) == whole
        assert list(fsck.find_mismatches(database, objects)) == []
        with pytest.raises(HubProblem, match="already has users"):
            restore(database, objects, folder)


def counts(database: Database) -> dict[str, int]:
    """Return how many rows each table has, of whatever the database itself says there is."""
    names = set(inspect(database.engine).get_table_names())
    with database.read() as session:
        return {
            name: session.scalar(text(f"SELECT count(*) FROM {name}"))
            for name in sorted(names)
            if not name.startswith(("environment_search", "sqlite_"))
        }


@pytest.mark.full
async def test_backups_contain_every_table_and_reject_unknown_ones(hub, run_of, tmp_path):
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    variables = os.environ | {"WANDER_HUB_DATABASE_URL": hub.database.url}
    if hub.settings.storage_url:
        variables["WANDER_HUB_STORAGE_URL"] = hub.settings.storage_url

    async def run(word: str, **given: str) -> subprocess.CompletedProcess[str]:
        data = tmp_path / "restored" if word == "restore" else hub.settings.data
        words = [
            sys.executable,
            "-m",
            "wander_hub.cli.main",
            word,
            str(tmp_path / "backup"),
            "--data",
            str(data),
        ]
        return await asyncio.to_thread(subprocess.run, words, env=given, capture_output=True, text=True)

    done = await run("backup", **variables)
    assert done.returncode == 0, done.stderr
    done = await run("restore", **os.environ)
    assert done.returncode == 0, done.stderr
    found = counts(hub.database)
    assert found["versions"] == found["runs"] == 1
    assert found["tokens"] == 3
    restored = Database(f"sqlite:///{tmp_path / 'restored' / 'hub.db'}")
    assert counts(restored) == found | {"transfers": 0, "transfer_parts": 0}
    restored.close()
    with hub.database.write() as session:
        session.execute(text("CREATE TABLE forgotten (id INTEGER PRIMARY KEY)"))
    with pytest.raises(HubProblem, match="`forgotten`"):
        back_up(hub.database, hub.client._transport.app.state.storage, tmp_path / "backup")


def test_backup_knows_every_table_without_importing_the_hub(database):
    told = "from wander_hub.operation import backup; print(*backup.Base.metadata.tables)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert set(counts(database)) - {"alembic_version"} == set(done.stdout.split())


async def test_damaged_and_unfinished_uploads_are_left_out_of_a_backup(hub, tmp_path, folder_alone):
    sha256, folder = await hub.publish(), tmp_path / "backup"
    storage = hub.client._transport.app.state.storage
    upload = await StagedUpload.begin(hub.client, hub.auth(), {WHEEL_NAME: wheel_of()})
    assert (await upload.send(WHEEL_NAME, wheel_of())).status_code == 200
    back_up(hub.database, storage, folder)
    with empty(tmp_path / "restored", "sqlite", None) as (database, objects, _):
        restore(database, objects, folder)
        assert list(fsck.find_mismatches(database, objects)) == []
        with pytest.raises(HubProblem, match="already has users"):
            restore(database, Storage.open(None, tmp_path / "untouched"), folder)
    assert not list(Storage.open(None, tmp_path / "untouched").objects())
    path = next((hub.settings.data / "objects").rglob(f"*{sha256[-20:]}"))
    path.chmod(0o600)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(HubProblem, match=sha256[-20:]):
        back_up(hub.database, storage, tmp_path / "second")
    assert (tmp_path / "second" / ROWS).exists()
