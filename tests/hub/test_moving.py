"""An archive of a hub or an owner becomes the same pages elsewhere; a spoiled one changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator

import pytest
import zstandard
from hub_jobs import work_off
from sealed_rows import keep_sealed_set
from second_hub import second_hub
from small_models import checkpoint
from sqlalchemy import func, select
from staged_uploads import pushed
from wander_hub.accounts.repository import owner_named
from wander_hub.audit import Origin, list_entries
from wander_hub.database import Base, Database
from wander_hub.environments import documents
from wander_hub.environments.models import Environment
from wander_hub.environments.repository import environment_named
from wander_hub.environments.service import find_version
from wander_hub.fsck import check as fsck
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.jobs import TableQueue
from wander_hub.operation import archive, belongings, imports
from wander_hub.operation.export import export
from wander_hub.storage import Storage

RUN, OTHER = "01JRUN0000000000000000000A", "01JRUN0000000000000000000B"
HIDDEN, GONE = "01JRUN0000000000000000000C", "01JRUN0000000000000000000D"
API, BOARD = "/api/v1/environments/alice/reverse-text", "/leaderboard"
PAGES = (
    *("/alice/simple/", "/alice/simple/reverse-text/", "/alice/reverse-text", "/alice", "/bob"),
    "/api/v1/environments",
    *(API, API + "/versions/0.1.0", API + BOARD, "/alice/reverse-text/leaderboard", "/models/alice/ttt"),
    *("/alice/files/reverse-text/reverse_text-0.2.0-py3-none-any.whl", "/alice/text", "/bob/secret"),
    "/api/v1/models/alice/ttt/revisions/latest",
    *(f"/api/v1/runs/{one}{rest}" for one in (RUN, OTHER, GONE) for rest in ("", "/verifications")),
    *(f"/api/v1/runs/{one}/{rest}" for one in (RUN, OTHER) for rest in ("rollouts", "evidence")),
    f"/api/v1/runs/{RUN}/rollouts.jsonl",
    *(f"/runs/{one}" for one in (RUN, OTHER, HIDDEN, GONE)),
    f"/api/v1/runs/{RUN}/artifacts/metrics.jsonl",
)  # fmt: skip
ORIGIN = Origin("hub.import", "wander-hub")


async def fill(hub, run_of, make_wheel) -> None:
    """Let a hub hold some of everything."""

    async def change(method: str, path: str, body=None, user: str = "alice") -> None:
        answer = await hub.client.request(method, path, json=body, headers=hub.auth(user))
        assert answer.status_code < 300, answer.text

    sha256 = await hub.publish()
    await hub.publish(
        make_wheel(version="0.2.0", readme="# Reverse\n\n![x](https://x.test/y.png) <b>it</b>\n")
    )
    await hub.publish(make_wheel(version="0.3.0", files={"reverse_text.py": b"x = 1\n"}))
    await hub.publish(make_wheel(name="secret", files={"secret.py": b"x = 1\n"}), owner="bob")
    await hub.publish(make_wheel(name="text", files={"text.py": b"x = 2\n"}))
    await change("PUT", API + "/versions/0.2.0/yank", {"reason": "too easy"})
    await change("DELETE", API + "/versions/0.3.0?reason=wrong")
    await change("PUT", API + "/status", {"status": "deprecated", "reason": "old", "successor": "alice/text"})
    await change("POST", "/api/v1/environments/alice/text/transfer", {"owner": "alice", "name": "new-text"})
    await change("PUT", "/api/v1/environments/bob/secret/visibility", {"private": True}, "bob")
    for run_id, user, model in (
        (RUN, "bob", "a"),
        (OTHER, "alice", "b"),
        (HIDDEN, "bob", "c"),
        (GONE, "bob", "d"),
    ):
        manifest, rollouts = run_of(sha256, run_id=run_id, model=model, reward=[0.1, 0.9, 0.3, 0.7, 0.5, 0.6])
        artifacts = {"metrics.jsonl": b'{"step": 1}\n'} if run_id == RUN else {}
        assert (await hub.post_run(manifest, rollouts, user=user, artifacts=artifacts)).status_code == 201
    work_off(hub, TableQueue(hub.database), 6)
    await change("PUT", f"/api/v1/runs/{RUN}/name", {"name": "the short prompt"}, "bob")
    await change("PUT", f"/api/v1/runs/{HIDDEN}/hiding", {"reason": "it read the answers"})
    await change("DELETE", f"/api/v1/runs/{GONE}?reason=twice", user="bob")
    board = (await hub.get(API + BOARD)).json()["board"]
    await change("PUT", f"{API}/versions/0.1.0/boards/{board}", {"title": "Short", "pinned": True})
    assert (await pushed(hub.client, hub.auth(), checkpoint())).status_code == 201
    storage = hub.client._transport.app.state.storage
    lock = b'lock-version = "1.0"\n'
    with hub.database.write(HUB) as session:
        found = find_version(session, environment_named(session, "alice", "reverse-text"), "0.1.0")
        documents.attach(
            session, storage, found, "lock", io.BytesIO(lock), storage.put(io.BytesIO(lock)), len(lock)
        )


def bring(hub, path, **choices):
    return imports.bring(
        hub.database,
        hub.storage,
        path,
        settings=hub.settings,
        origin=ORIGIN,
        choices=imports.Choices(**choices),
    )


async def pages(hub, user="admin") -> dict[str, tuple[int, bytes]]:
    hub.client._transport.app.state.downloads.note = lambda _: None  # to read is not to change
    found = {}
    for path in PAGES:
        answer = await hub.client.get(path, headers={**hub.auth(user), "Accept": "text/html"})
        refused = answer.status_code >= 400  # such an answer has a number of its own
        found[path] = answer.status_code, b"" if refused else answer.content
    return found


def rows(database: Database) -> dict[str, int]:
    with database.read(HUB) as session:
        return {
            name: session.scalar(select(func.count()).select_from(one))
            for name, one in Base.metadata.tables.items()
        }


async def written(hub, path, **choices):
    storage = hub.client._transport.app.state.storage
    return await asyncio.to_thread(export, hub.database, storage, path, origin=ORIGIN, **choices)


def test_every_table_is_carried_or_left_out():
    named = {"owners", "users", "environments", "models", "jobs", "signing_keys"}
    assert set(Base.metadata.tables) == {*belongings.PARENTS, *belongings.LEFT_OUT, *named}


async def test_an_archive_becomes_the_same_pages_elsewhere(hub, run_of, make_wheel, tmp_path, request):
    await fill(hub, run_of, make_wheel)
    before, path = await pages(hub), tmp_path / "hub.tar"
    status, page = before[f"/runs/{RUN}"]
    assert (status, b"the short prompt" in page) == (200, True)
    commitment = keep_sealed_set(hub.database, "new-text")
    told = await written(hub, path)
    assert told["sealed_sets"] == 1, "only this hub can open it"
    assert (told["environments"], path.stat().st_mode & 0o777) == (3, 0o600)
    assert not list(tmp_path.glob(".*"))
    sent = await hub.client.get("/api/v1/owners/bob/archive", headers=hub.auth("admin"))
    assert int(sent.headers["content-length"]) == len(sent.content)
    own, same = tmp_path / "sent.tar", tmp_path / "bob.tar"
    own.write_bytes(sent.content)
    await written(hub, same, owner="bob")
    assert Forge(own).members.keys() == Forge(same).members.keys()
    assert (await hub.get("/api/v1/owners/nobody/archive", headers=hub.auth("admin"))).status_code == 404
    whole = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()[512:])
    for secret in (commitment, *hub.tokens.values(), "password", "memberships", '"table": "tokens"'):
        assert secret.encode() not in whole
    async with second_hub(tmp_path / "second", "sqlite", request) as other:
        assert bring(other, path) == {"environments": 3, "models": 1, "new": 4}
        after = await pages(other)
        assert {one for one in before if before[one] != after[one]} == set()
        assert list(fsck.find_mismatches(other.database, other.storage, settings=other.settings)) == []
        was = rows(other.database)
        assert bring(other, path)["new"] == 0
        assert rows(other.database) == was, "a second time changes nothing"
        with other.database.read() as session:
            entries = list_entries(session, action="hub.import")
            assert {one.target for one in entries} >= {"alice/reverse-text", "bob/secret", "alice/ttt"}
        stranger = await other.client.get("/bob/secret")
        assert stranger.status_code == 404
        second = tmp_path / "second.tar"
        export(other.database, other.storage, second, origin=ORIGIN)
        assert Forge(second).members.keys() == Forge(path).members.keys()


@pytest.mark.full
@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
async def test_to_postgresql_and_a_bucket_and_back(hub, run_of, make_wheel, tmp_path, request):
    await fill(hub, run_of, make_wheel)
    before = await pages(hub)
    await written(hub, tmp_path / "one.tar")
    async with second_hub(tmp_path / "second", "postgresql", request) as other:
        given = {"DATABASE_URL": other.database.url, "STORAGE_URL": other.settings.storage_url}
        variables = os.environ | {f"WANDER_HUB_{name}": value for name, value in given.items()}
        words = [sys.executable, "-m", "wander_hub.cli.main", "import", str(tmp_path / "one.tar"), "--json"]
        both = [await asyncio.create_subprocess_exec(*words, env=variables, stdout=-1) for _ in "ab"]
        told = [json.loads((await one.communicate())[0]) for one in both]
        assert sum(one["new"] for one in told) == 4, "two at once bring each once"
        export(other.database, other.storage, tmp_path / "two.tar", origin=ORIGIN)
        middle = await pages(other)  # which counts a download
        assert {one for one in before if before[one] != middle[one]} == set()
        assert list(fsck.find_mismatches(other.database, other.storage, settings=other.settings)) == []
    async with second_hub(tmp_path / "third", "sqlite", request) as third:
        assert bring(third, tmp_path / "two.tar")["new"] == 4
        after = await pages(third)
        assert {one for one in before if before[one] != after[one]} == set()


async def test_existing_names_are_reported_before_an_import(hub, run_of, make_wheel, tmp_path, request):
    await fill(hub, run_of, make_wheel)
    path, mine = tmp_path / "alice.tar", tmp_path / "mine"
    with hub.database.write() as session:
        careful = owner_named(session, "alice")
        careful.private_by_default = careful.internal_by_default = True
    assert (await written(hub, path, owner="alice"))["environments"] == 2
    hub.storage = hub.client._transport.app.state.storage
    was = rows(hub.database)
    with pytest.raises(HubProblem) as refused:
        bring(hub, path, merge=True)
    assert "environment `alice/reverse-text`" in refused.value.detail
    assert f"run `{RUN}`" in refused.value.detail
    with pytest.raises(HubProblem, match=r"owner `alice`.*user `bob`"):
        bring(hub, path)
    assert rows(hub.database) == was
    async with second_hub(mine, "sqlite", request) as other:
        assert bring(other, path, under="elsewhere") == {"environments": 2, "models": 1, "new": 3}
        with pytest.raises(HubProblem, match="already imported as `elsewhere`") as another:
            bring(other, path, under="third")
        assert another.value.hint == "continue with `--as elsewhere`"
        with other.database.read(HUB) as session:
            assert owner_named(session, "elsewhere").default_visibility == "internal"
        found = await other.client.get("/api/v1/environments/elsewhere/reverse-text")
        assert found.json()["owner"] == "elsewhere"
        assert (await other.client.get("/elsewhere/simple/reverse-text/")).status_code == 200
        assert (await other.client.get("/bob/secret", headers=other.auth())).status_code == 404
        assert list(fsck.find_mismatches(other.database, other.storage, settings=other.settings)) == []
        with other.database.read(HUB) as session:
            assert session.scalar(select(func.count()).select_from(Base.metadata.tables["memberships"])) == 1
        with pytest.raises(HubProblem, match="no owner `nobody`"):
            export(other.database, other.storage, path, origin=ORIGIN, owner="nobody")


def test_a_concurrent_export_is_not_removed(tmp_path, monkeypatch):
    path, part, locked = tmp_path / "hub.tar", tmp_path / ".hub.tar.part", archive.fcntl.flock

    def finish_meanwhile(descriptor, operation):
        monkeypatch.undo()
        part.write_bytes(b"whole")
        part.replace(path)
        locked(descriptor, operation)

    monkeypatch.setattr(archive.fcntl, "flock", finish_meanwhile)
    with archive.written(path) as file:
        assert path.read_bytes() == b"whole"
        with pytest.raises(HubProblem, match="another export"), archive.written(path):
            pass
        file.write(b"next")
    assert path.read_bytes() == b"next"


class Forge:
    """An archive taken apart, to be put together otherwise."""

    def __init__(self, path) -> None:
        with tarfile.open(path) as tar:
            self.members = {one.name: tar.extractfile(one).read() for one in tar}
        self.links: list[tuple[str, bytes]] = []
        self.name = archive.ROWS

    def lines(self) -> list:
        packed = zstandard.ZstdDecompressor().decompressobj().decompress(self.members[self.name])
        return [json.loads(one) for one in packed.splitlines()][:-1]

    def set_lines(self, lines) -> None:
        body = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
        end = {"sha256": hashlib.sha256(body).hexdigest(), "rows": 0}
        self.members[self.name] = zstandard.compress(body + json.dumps(end).encode() + b"\n")

    def change(self, table: str, column: str, value) -> None:
        lines, at = self.lines(), None
        for line in lines:
            if isinstance(line, dict):
                at = line["columns"].index(column) if line.get("table") == table else None
            elif at is not None:
                line[at] = value
        self.set_lines(lines)

    def write(self, path) -> None:
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for name, content in self.members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            for name, kind in self.links:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = kind, "/etc/passwd"
                tar.addfile(info)


def _object(forge: Forge) -> str:
    return next(one for one in forge.members if one.startswith("objects"))


def _turn(forge: Forge, name: str) -> None:
    body = bytearray(forge.members[name])
    body[len(body) // 2] ^= 1
    forge.members[name] = bytes(body)


SPOILED = {
    "a changed byte of an object": lambda f: _turn(f, _object(f)),
    "a changed byte of the rows": lambda f: _turn(f, archive.ROWS),
    "an object that nothing needs": lambda f: f.members.update(
        {f"objects/sha256/{'0' * 2}/{'1' * 62}": b"x"}
    ),
    "a path out of the folder": lambda f: f.members.update({"../../../etc/cron.d/x": b"x"}),
    "a symbolic link": lambda f: f.links.append((_object(f), tarfile.SYMTYPE)),
    "a hard link": lambda f: f.links.append(("objects/x", tarfile.LNKTYPE)),
    "a device": lambda f: f.links.append((_object(f), tarfile.CHRTYPE)),
    "an object too few": lambda f: f.members.pop(_object(f)),
    "another format": lambda f: f.set_lines([{**f.lines()[0], "format": "wander.archive/2"}, *f.lines()[1:]]),
    "a newer release": lambda f: f.set_lines([{**f.lines()[0], "revision": "9999"}, *f.lines()[1:]]),
    "a release that never was": lambda f: f.set_lines([{**f.lines()[0], "revision": "0000"}, *f.lines()[1:]]),
    "a table that is none": lambda f: f.set_lines(
        [f.lines()[0], {"table": "x; DROP", "columns": ["a"]}, [1]]
    ),
    "rows of another shape": lambda f: f.set_lines(
        [f.lines()[0], {"table": "users", "columns": ["id"]}, "x"]
    ),
    "no rows": lambda f: f.members.update({archive.ROWS: b""}),
    "an owner that is a path": lambda f: f.change("owners", "name", "../x"),
    "a file that is a path": lambda f: f.change("files", "filename", "../../x-1-py3-none-any.whl"),
    "an environment that is none": lambda f: f.change("environments", "name", "a/b"),
    "a size that is another": lambda f: f.change("files", "size", 1),
    "a key of nothing": lambda f: f.change("versions", "environment_id", 99),
}


def bomb(head, count: int, length: int) -> Iterator[bytes]:
    """Yield packed rows that unpack to `count` times `length` bytes."""
    packing = zstandard.ZstdCompressor().compressobj()
    for one in (head, {"table": "versions", "columns": ["readme"]}):
        yield packing.compress(json.dumps(one).encode() + b"\n")
    for _ in range(count):
        yield packing.compress(b'["')
        for _ in range(length >> 20):
            yield packing.compress(b"x" * (1 << 20))
        yield packing.compress(b'"]\n')
    yield packing.flush()


async def test_a_spoiled_archive_changes_nothing(hub, run_of, tmp_path, request, monkeypatch):
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    good, bad = tmp_path / "good.tar", tmp_path / "bad.tar"
    await written(hub, good)
    async with second_hub(tmp_path / "second", "sqlite", request) as other:
        was = rows(other.database)
        for what, spoil in SPOILED.items():
            forge = Forge(good)
            spoil(forge)
            forge.write(bad)
            with pytest.raises(HubProblem) as refused:
                bring(other, bad)
            assert refused.value.code == "bad_copy", what
            assert rows(other.database) == was, what
        huge = tarfile.TarInfo(archive.ROWS)
        huge.size = 1 << 60
        for body in (huge.tobuf(tarfile.GNU_FORMAT), b"", b"x" * 4096, good.read_bytes()[:-12_000]):
            bad.write_bytes(body)
            with pytest.raises(HubProblem) as refused:
                bring(other, bad)
            assert refused.value.code == "bad_copy"
        monkeypatch.setattr(imports, "_UNPACKED", 1 << 20)
        for count, length, told in (
            (1, 1 << 28, "a row is longer than"),
            (400, 1 << 20, "the rows unpack to"),
        ):
            with tarfile.open(bad, "w", format=tarfile.GNU_FORMAT) as tar:
                body = b"".join(bomb(Forge(good).lines()[0], count, length))
                info = tarfile.TarInfo(archive.ROWS)
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
            assert len(body) < 100_000, "a small archive"
            with pytest.raises(HubProblem, match=told):
                bring(other, bad)
            assert rows(other.database) == was
        monkeypatch.undo()
        forge = Forge(good)
        forge.change("versions", "readme_html", "<p>hello</p><script>steal()</script>")
        forge.write(bad)
        assert bring(other, bad)["new"] == 1
        page = (await other.client.get("/alice/reverse-text", headers={"Accept": "text/html"})).text
        assert "<p>hello</p>" in page
        assert "steal()" not in page
        with pytest.raises(HubProblem, match="environment `alice/reverse-text`"):
            bring(other, good)


async def test_a_killed_import_resumes(hub, run_of, make_wheel, tmp_path, request, monkeypatch):
    await fill(hub, run_of, make_wheel)
    before, path = await pages(hub), tmp_path / "hub.tar"
    await written(hub, path)
    async with second_hub(tmp_path / "second", "sqlite", request) as other:
        for where, name in (
            (Storage, "keep"),
            (imports, "_name_people"),
            (imports, "_add_rows"),
            (imports, "_place"),
        ):
            done = getattr(where, name)

            def die(*given, done=done, **named):
                done(*given, **named)
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(where, name, die)
                with pytest.raises(KeyboardInterrupt):
                    bring(other, path)
        with other.database.write(HUB) as session:
            assert session.scalar(select(func.count()).select_from(Environment)) < 3
        assert bring(other, path)["environments"] == 3
        assert {one for one, told in (await pages(other)).items() if before[one] != told} == set()


@pytest.mark.full
async def test_commands_killed_at_any_moment_lose_nothing(hub, run_of, make_wheel, tmp_path):
    await fill(hub, run_of, make_wheel)
    given = os.environ | {
        "WANDER_HUB_DATABASE_URL": hub.database.url,
        "WANDER_HUB_DATA": str(hub.settings.data),
    }
    if hub.settings.storage_url:
        given["WANDER_HUB_STORAGE_URL"] = hub.settings.storage_url
    here = {k: v for k, v in os.environ.items() if k != "WANDER_HUB_DATABASE_URL"}
    here["WANDER_HUB_DATA"] = str(tmp_path / "second")
    path, draw = tmp_path / "hub.tar", random.Random(5)

    def run(variables, *words, after=None):
        process = subprocess.Popen([sys.executable, "-m", "wander_hub.cli.main", *words], env=variables)
        killer = threading.Timer(after, process.send_signal, [signal.SIGKILL]) if after else None
        if killer:
            killer.start()
        process.wait()
        return process.returncode

    await asyncio.to_thread(run, given, "export", str(path), after=draw.uniform(0.2, 2))
    assert not path.exists() or Forge(path).members
    assert await asyncio.to_thread(run, given, "export", str(path)) == 0
    for _ in range(3):
        await asyncio.to_thread(run, here, "import", str(path), after=draw.uniform(0.3, 4))
    assert await asyncio.to_thread(run, here, "import", str(path)) == 0
    database = Database(f"sqlite:///{tmp_path / 'second' / 'hub.db'}")
    with database.read(HUB) as session:
        assert session.scalar(select(func.count()).select_from(Environment)) == 3
    assert list(fsck.find_mismatches(database, Storage.open(None, tmp_path / "second" / "objects"))) == []
    database.close()
    copies, third = str(tmp_path / "copies"), here | {"WANDER_HUB_DATA": str(tmp_path / "third")}
    for variables, word in ((here, "backup"), (third, "restore")):
        for _ in range(2):
            await asyncio.to_thread(run, variables, word, copies, after=draw.uniform(0.8, 2.5))
        done = await asyncio.to_thread(run, variables, word, copies)
        # One that was killed when all was in place has nothing left to do.
        assert done == 0 or (word == "restore" and done == 1)
    restored = Database(f"sqlite:///{tmp_path / 'third' / 'hub.db'}")
    assert list(fsck.find_mismatches(restored, Storage.open(None, tmp_path / "third" / "objects"))) == []
    assert rows(restored)["runs"] == 4
    restored.close()
