"""A real hub over ASGI: schema from the migrations, real wheels, real tokens."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import sys
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from asgi_client import asgi_client
from object_server import WANTED as WANTED_STORAGE
from object_server import ObjectServer, object_server
from postgres_server import WANTED, PostgresServer, postgres_server
from token_issuer import Issuer, token_issuer
from wander_hub import app as hub_app
from wander_hub.accounts import service as accounts
from wander_hub.app import create_app
from wander_hub.database import Database
from wander_hub.rights.tokens import add_token, first_administrator
from wander_hub.settings import Settings

MODULE = b'"""An environment."""\n\n\ndef load_environment(**arguments):\n    return arguments\n'


@dataclass
class WheelSpec:
    """A wheel to build; every part can be spoiled."""

    name: str = "reverse-text"
    version: str = "0.1.0"
    filename: str | None = None
    summary: str = "Reverse a text."
    readme: str = "# Reverse text\n\nReverse it.\n"
    requires_python: str = ">=3.11"
    requires_dist: tuple[str, ...] = ("wander-sdk",)
    keywords: str = "text,single-turn"
    entry_points: str | None = "[wander.environments]\nreverse-text = reverse_text:load_environment\n"
    files: dict[str, bytes] = field(default_factory=lambda: {"reverse_text.py": MODULE})
    metadata: bytes | None = None
    record: bytes | None = None
    without: tuple[str, ...] = ()
    """Names in the dist-info folder to leave out."""
    mutate: Callable[[zipfile.ZipFile], None] | None = None

    @property
    def stem(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}"

    @property
    def wheel_name(self) -> str:
        return self.filename or f"{self.stem}-py3-none-any.whl"

    def core_metadata(self) -> bytes:
        if self.metadata is not None:
            return self.metadata
        lines = [
            "Metadata-Version: 2.4",
            f"Name: {self.name}",
            f"Version: {self.version}",
            f"Summary: {self.summary}",
            f"Keywords: {self.keywords}",
            f"Requires-Python: {self.requires_python}",
            *(f"Requires-Dist: {one}" for one in self.requires_dist),
            "Description-Content-Type: text/markdown",
            "License-Expression: MIT",
        ]
        return ("\n".join(lines) + "\n\n" + self.readme).encode()

    def build(self) -> bytes:
        """Return the bytes of the wheel, the same for the same spec."""
        info = f"{self.stem}.dist-info"
        members = dict(self.files)
        members[f"{info}/METADATA"] = self.core_metadata()
        members[f"{info}/WHEEL"] = (
            b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        if self.entry_points is not None:
            members[f"{info}/entry_points.txt"] = self.entry_points.encode()
        members = {path: body for path, body in members.items() if Path(path).name not in self.without}
        record = "".join(f"{path},sha256={b64digest(body)},{len(body)}\n" for path, body in members.items())
        if "RECORD" not in self.without:
            members[f"{info}/RECORD"] = self.record or (record + f"{info}/RECORD,,\n").encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, body in members.items():
                archive.writestr(zipfile.ZipInfo(path, (2020, 2, 2, 0, 0, 0)), body, zipfile.ZIP_DEFLATED)
            if self.mutate is not None:
                self.mutate(archive)
        return buffer.getvalue()


def b64digest(body: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()


@dataclass
class Hub:
    """One running hub and the tokens of its users."""

    client: httpx.AsyncClient
    database: Database
    settings: Settings
    tokens: dict[str, str]

    def auth(self, user: str = "alice") -> dict[str, str]:
        """Return the headers of somebody with a token, or of a page of the hub in somebody's browser."""
        secret = self.tokens[user]
        if secret.startswith("wander-session="):
            return {"Cookie": secret, "Sec-Fetch-Site": "same-origin"}
        return {"Authorization": f"Bearer {secret}"}

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(path, **options)

    async def upload(
        self,
        body: bytes,
        filename: str,
        *,
        owner: str = "alice",
        user: str | None = "alice",
        fields: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Upload as twine does."""
        given = {":action": "file_upload", "protocol_version": "1"}
        given["sha256_digest"] = hashlib.sha256(body).hexdigest()
        return await self.client.post(
            f"/{owner}/legacy/",
            data=given | (fields or {}),
            files={"content": (filename, body, "application/octet-stream")},
            headers=headers or (self.auth(user) if user else {}),
        )

    async def publish(self, spec: WheelSpec | None = None, owner: str = "alice") -> str:
        """Publish a wheel; return its SHA-256."""
        spec = spec or WheelSpec()
        body = spec.build()
        answer = await self.upload(body, spec.wheel_name, owner=owner, user=owner)
        assert answer.status_code == 200, answer.text
        return hashlib.sha256(body).hexdigest()

    async def post_run(
        self,
        manifest: dict[str, Any],
        rollouts: list[dict[str, Any]] | bytes | None,
        *,
        user: str | None = "alice",
        artifacts: dict[str, bytes] | None = None,
        compress: bool = False,
    ) -> httpx.Response:
        """Post a run folder as the client does."""
        files: list[tuple[str, Any]] = [("manifest", ("run.json", json.dumps(manifest).encode()))]
        if rollouts is not None:
            body = rollouts if isinstance(rollouts, bytes) else as_lines(rollouts)
            name = "rollouts.jsonl"
            if compress:
                body, name = zstandard.ZstdCompressor().compress(body), "rollouts.jsonl.zst"
            files.append(("rollouts", (name, body)))
        files += [("artifacts", (name, body)) for name, body in (artifacts or {}).items()]
        return await self.client.post("/api/v1/runs", files=files, headers=self.auth(user) if user else {})


def as_lines(rollouts: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in rollouts).encode()


def manifest_for(
    wheel_sha256: str | None,
    *,
    run_id: str = "01JRUN0000000000000000000A",
    owner: str | None = "alice",
    name: str = "reverse-text",
    version: str | None = "0.1.0",
    examples: int = 3,
    per_example: int = 2,
    model: str = "tiny",
    **changes: Any,
) -> dict[str, Any]:
    """Return a manifest that fits `rollouts_for`."""
    info = {
        "name": name,
        "kind": "single_turn",
        "summary": "Reverse a text.",
        "reward_functions": [{"name": "lcs", "weight": 1.0}, {"name": "length", "weight": 0.0}],
        "eval_examples": max(3, examples),
        "defaults": {"length": 5},
    }
    manifest: dict[str, Any] = {
        "schema": "wander.run/1",
        "run_id": run_id,
        "kind": "evaluation",
        "environment": {
            "owner": owner,
            "name": name,
            "version": version,
            "wheel_sha256": wheel_sha256,
            "arguments": {"length": 5},
            "info": info,
        },
        "model": {"name": model, "kind": "ScriptedClient"},
        "sampling": {"temperature": 1.0},
        "example_ids": [str(number) for number in range(examples)],
        "rollouts_per_example": per_example,
        "task_set_sha256": hashlib.sha256(f"{examples}".encode()).hexdigest(),
        "seed": 7,
        "started_at": "2026-11-20T12:00:00Z",
        "platform": {"wander": "0.1.0", "python": "3.11", "system": "Linux", "machine": "x86_64"},
    }
    return manifest | changes


def rollout_line(example: str, index: int, reward: float | None, **changes: Any) -> dict[str, Any]:
    reply = {"role": "assistant", "content": f"reply {example}/{index}"}
    line: dict[str, Any] = {
        "example_id": example,
        "index": index,
        "seed": 1,
        "prompt": [{"role": "user", "content": f"reverse {example}"}],
        "completion": [reply],
        "turns": [{"message": reply, "context_messages": 1, "usage": {"completion_tokens": 4}}],
        "stop_reason": "done",
        "reward": reward,
        "metrics": {"lcs": reward, "length": 5.0} if reward is not None else {},
        "usage": {"prompt_tokens": 10, "completion_tokens": 4},
        "seconds": 0.5,
    }
    if reward is None:
        line["failure"] = {"boundary": "model", "type": "EndpointUnreachable", "message": "nothing listens"}
        line["stop_reason"] = None
    return line | changes


def rollouts_for(manifest: dict[str, Any], rewards: list[float | None] | float) -> list[dict[str, Any]]:
    """Return one line a key, with the given rewards in order."""
    keys = [
        (example, index)
        for example in manifest["example_ids"]
        for index in range(manifest["rollouts_per_example"])
    ]
    given = rewards if isinstance(rewards, list) else [rewards] * len(keys)
    lines = [rollout_line(*key, reward) for key, reward in zip(keys, given, strict=True)]
    for line in lines:  # runs that say the same are folded into one entry of a board
        line["completion"][0]["content"] += f" of {manifest['run_id']}"
    return lines


@pytest.fixture
def sqlite_alone(database_kind: str) -> None:
    """Skip a test of what SQLite alone has, where the suite runs on PostgreSQL."""
    if database_kind != "sqlite":
        pytest.skip("about SQLite")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL, started when the first test asks for it."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def database_kind(request: pytest.FixtureRequest) -> str:
    """`sqlite` or `postgresql`: what a test is parametrised with, else what `WANDER_TEST_DATABASE` says."""
    return str(getattr(request, "param", WANTED))


@pytest.fixture(scope="session")
def objects() -> Iterator[ObjectServer]:
    """A real S3-compatible server, started when the first test asks for it."""
    with object_server() as server:
        yield server


@pytest.fixture
def s3_url(objects: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket, with what this process needs in order to use it."""
    for name, value in objects.variables.items():
        monkeypatch.setenv(name, value)
    return objects.bucket()


@pytest.fixture
def folder_alone() -> None:
    """Skip a test that looks into the folder of objects, where the suite runs on S3."""
    if WANTED_STORAGE != "folder":
        pytest.skip("about the folder of objects")


@pytest.fixture
def settings(
    tmp_path: Path,
    usual_settings: Settings,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    # After 20 s a hub makes the search of the docs: a second of processor time that some tests would measure.
    monkeypatch.setattr(hub_app, "_SEARCH_SECONDS", 3600.0)
    storage_url = request.getfixturevalue("s3_url") if WANTED_STORAGE == "s3" else None
    seal_key = tmp_path / "seal.key"  # made when a test seals something
    own = {"data": tmp_path / "data", "storage_url": storage_url, "seal_key_file": seal_key}
    return usual_settings.model_copy(update=own)


@pytest.fixture
def database(
    settings: Settings,
    database_kind: str,
    migrated_database: Path,
    peopled_database: tuple[Path, dict[str, str]],
    request: pytest.FixtureRequest,
) -> Iterator[Database]:
    """A migrated, empty database; a file has the people of `hub` where a test asks for it."""
    settings.data.mkdir(parents=True)
    if database_kind == "postgresql":
        with request.getfixturevalue("postgres").database() as url:
            database = Database(url)
            yield database
            database.close()
    else:
        people, _ = peopled_database
        file = people if "hub" in request.fixturenames else migrated_database
        shutil.copy(file, settings.data / "hub.db")
        database = Database(settings.resolved_database_url)
        yield database
        database.close()


def add_people(database: Database) -> dict[str, str]:
    """Add an administrator and the users alice and bob; return their tokens."""
    with database.write() as session:
        tokens = {"admin": first_administrator(session) or ""}
        for name in ("alice", "bob"):
            tokens[name] = add_token(session, accounts.add_user(session, name), "test")
    return tokens


@pytest.fixture(scope="session")
def peopled_database(migrated_database: Path) -> tuple[Path, dict[str, str]]:
    """A database file with people, and their tokens; to add them takes longer than to copy it."""
    path = migrated_database.with_name("peopled.db")
    shutil.copy(migrated_database, path)
    database = Database(f"sqlite:///{path}")
    tokens = add_people(database)
    database.close()
    return path, tokens


@pytest.fixture
async def hub(
    settings: Settings, database: Database, peopled_database: tuple[Path, dict[str, str]]
) -> AsyncIterator[Hub]:
    """A hub with an administrator and the users alice and bob."""
    _, tokens = peopled_database
    if database.engine.dialect.name != "sqlite":
        tokens = add_people(database)
    app = create_app(settings, database=database)
    async with app.router.lifespan_context(app), asgi_client(app, raises=False) as client:
        yield Hub(client, database, settings, dict(tokens))  # tests add theirs


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An issuer of identity tokens, over HTTP."""
    with token_issuer() as found:
        yield found


@pytest.fixture
def wheel_spec() -> WheelSpec:
    return WheelSpec()


@pytest.fixture(scope="session")
def make_wheel() -> type[WheelSpec]:
    return WheelSpec


@pytest.fixture
def run_of() -> Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return manifest and rollouts of a complete run."""

    def build(
        wheel_sha256: str | None, *, reward: float | list[float | None] = 0.5, **changes: Any
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        manifest = manifest_for(wheel_sha256, **changes)
        return manifest, rollouts_for(manifest, reward)

    return build


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in this process; gives status, standard output and standard error."""

    from wander_hub.cli.main import main

    def run_here(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["wander-hub", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run_here
