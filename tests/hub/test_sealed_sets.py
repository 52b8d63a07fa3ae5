"""Sealed task sets on the hub: what its API accepts, what it stores, and what opens.

Only the `wander` command is replaced here; tests/system/test_sealed_sets.py runs it.
"""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zstandard
from sqlalchemy import select, update
from wander.evals.stats.summary import summarize
from wander.types import Rollout
from wander.wire.transfers import commitment_of, make_set
from wander_hub.database import now
from wander_hub.identity import HUB
from wander_hub.jobs import Job, JobContext, TableQueue
from wander_hub.operation.backup import back_up
from wander_hub.operation.job_queue import settle_failures
from wander_hub.sealed import memory
from wander_hub.sealed import worker as sealed_worker
from wander_hub.sealed.models import SealedSet
from wander_hub.settings import Settings

MARKER, KEY = "zyzzyva", "sk-quokka"
PLACE = "/api/v1/environments/alice/reverse-text"
ENDPOINT = "https://model.example/v1"
ROWS = [{"question": f"reverse {MARKER}{n}", "answer": f"{MARKER}{n}"} for n in range(3)]


class Command:
    """Answers in place of `wander seal check` and `wander eval`."""

    def __init__(self, run_of: Any, wheel: str) -> None:
        self.run_of, self.wheel = run_of, wheel
        self.refused: list[dict[str, Any]] = []
        self.error: dict[str, str] | None = None
        self.keys: list[str | None] = []

    def answer_in_memory(
        self, context: JobContext, words: list[str], version_id: int, *, folder: Path, variables: Any
    ) -> dict[str, Any]:
        content = (folder / "set.jsonl").read_bytes()
        if words[0] == "seal":
            return {"data": {"examples": len(ROWS), "refused": self.refused}}
        self.keys.append(variables.get("OPENAI_API_KEY"))
        if self.error is not None:
            return {"error": self.error}
        manifest, lines = self.run_of(self.wheel, model="echo")
        manifest["environment"]["sealed"] = commitment_of(content)
        lines = json.loads(json.dumps(lines).replace("reverse ", f"reverse {MARKER}"))
        run = Path(words[words.index("--out") + 1])
        run.mkdir()
        (run / "run.json").write_text(json.dumps(manifest))
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        (run / "rollouts.jsonl.zst").write_bytes(zstandard.compress(text))
        rollouts = [Rollout.model_validate(line) for line in lines]
        return {"data": {"summary": summarize(rollouts, expected=len(rollouts)).model_dump(mode="json")}}


@pytest.fixture
async def command(hub, run_of, monkeypatch) -> Command:
    made = Command(run_of, await hub.publish())
    monkeypatch.setattr(sealed_worker, "client_program", lambda *_: made)
    return made


def work(hub) -> None:
    """Do all jobs about sealed sets."""
    queue = settle_failures(TableQueue.of(hub.settings, hub.database))
    storage = hub.client._transport.app.state.storage
    worker = sealed_worker.worker(hub.settings, hub.database, storage, queue, "http://hub")
    assert worker is not None
    worker.run_waiting()


async def create(hub, content: bytes, user: str = "alice", opens_at: str = "") -> Any:
    path = f"{PLACE}/versions/0.1.0/sealed"
    when = {"opens_at": opens_at or (now() + timedelta(days=7)).isoformat()}
    return await hub.client.post(path, content=content, params=when, headers=hub.auth(user))


async def sealed(hub) -> str:
    """Seal the rows, and let the hub check them; return the commitment."""
    made = await create(hub, make_set(ROWS))
    assert made.status_code == 201, made.text
    work(hub)
    return str(made.json()["commitment"])


async def play(hub, commitment: str, user: str = "bob", **changes: Any) -> Any:
    body = {"model": "echo", "endpoint": ENDPOINT, "key": KEY, **changes}
    return await hub.client.post(f"/api/v1/sealed/{commitment}/plays", json=body, headers=hub.auth(user))


async def shown(hub, commitment: str) -> dict[str, Any]:
    answer = await hub.get(f"/api/v1/sealed/{commitment}")
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def bytes_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


async def test_a_play_shows_aggregates_until_the_set_opens(hub, command, sqlite_alone, caplog):
    commitment = await sealed(hub)
    asked = await play(hub, commitment)
    assert asked.status_code == 201, asked.text
    work(hub)
    found = await shown(hub, commitment)
    (row,) = found["plays"]
    assert (row["level"], row["host"], row["submitted_by"]) == ("sealed", "model.example", "bob")
    assert (row["rollouts"], row["reward_mean"], row["run_id"]) == (6, 0.5, None)
    assert (found["exposures"], command.keys) == (1, [KEY])
    back_up(hub.database, hub.client._transport.app.state.storage, hub.settings.data.parent / "copy")
    stored = bytes_below(hub.settings.data) + bytes_below(hub.settings.data.parent / "copy")
    for word in (MARKER, KEY):
        assert word.encode() not in stored
        assert word not in caplog.text
    for path in (f"/sealed/{commitment}", "/alice/reverse-text", f"{PLACE}/sealed", "/api/v1/runs"):
        for user in (None, "bob"):
            answer = await hub.get(path, headers={"Accept": "text/html"} | (hub.auth(user) if user else {}))
            assert answer.status_code == 200, path
            assert MARKER not in answer.text
    hidden = await hub.get(f"/api/v1/sealed/{commitment}/examples.jsonl", headers=hub.auth())
    assert (hidden.status_code, hidden.json()["code"]) == (404, "set_sealed")

    place = f"/api/v1/sealed/{commitment}/opening"
    opened = await hub.client.put(place, json={}, headers=hub.auth())
    assert opened.status_code == 200, opened.text
    work(hub)
    found = await shown(hub, commitment)
    file = (await hub.get(f"/api/v1/sealed/{commitment}/examples.jsonl")).content
    assert hashlib.sha256(file).hexdigest() == commitment
    (row,) = found["plays"]
    assert (found["state"], row["level"], row["error"]) == ("opened", "complete", None)
    run = (await hub.get(f"/api/v1/runs/{row['run_id']}")).json()
    assert (run["posted_by"], run["manifest"]["environment"]["sealed"]) == ("bob", commitment)
    assert (await play(hub, commitment)).json()["code"] == "set_open"
    assert (await hub.client.put(place, json={}, headers=hub.auth())).json()["code"] == "set_open"


async def test_errors_never_quote_an_example(hub, command):
    commitment = await sealed(hub)
    for error, told in (
        ({"code": "authentication_failed", "message": f"bad key {KEY}"}, "the endpoint refused the key"),
        ({"code": "dataset_error", "message": MARKER}, "the evaluation failed (`dataset_error`)"),
    ):
        command.error = error
        assert (await play(hub, commitment)).status_code == 201
        work(hub)
        found = await shown(hub, commitment)
        assert found["plays"][-1]["error"] == told
        assert found["exposures"] == 0, "the command ended before its first question"
    command.refused = [{"row": 2, "reason": MARKER}]
    refused = await shown(hub, await sealed(hub))
    assert refused["state"] == "refused"
    assert "1 of the examples (rows 2)" in refused["error"]
    with hub.database.read(HUB) as session:
        assert MARKER not in "".join(filter(None, session.scalars(select(Job.error))))


async def test_a_key_that_a_restart_lost_has_to_be_submitted_again(hub, command, monkeypatch):
    commitment = await sealed(hub)
    await play(hub, commitment)
    with hub.database.read(HUB) as session:
        (payload,) = session.scalars(select(Job.payload).where(Job.kind == "seal-play"))
    assert memory.take_key(payload["key"]) == KEY
    work(hub)
    (row,) = (await shown(hub, commitment))["plays"]
    assert "submit the play again" in row["error"]


async def test_what_cannot_be_sealed_played_or_opened(hub, command):
    content = make_set(ROWS)
    early = await create(hub, content, opens_at="2020-01-01T00:00:00Z")
    assert early.json()["code"] == "bad_date"
    assert (await create(hub, f"{MARKER}\n".encode())).json()["detail"] == "line 1: it is not JSON"
    assert (await create(hub, content, user="bob")).status_code == 403
    made = await create(hub, content)
    assert (await create(hub, content)).json()["code"] == "set_exists"
    commitment = made.json()["commitment"]
    assert (await play(hub, commitment)).json()["code"] == "set_checking"
    work(hub)
    for endpoint in (
        "http://model.example/v1",
        "https://10.0.0.1/v1",
        "https://localhost/v1",
        "https://u@h/v1",
    ):
        assert (await play(hub, commitment, endpoint=endpoint)).json()["code"] == "bad_endpoint", endpoint
    for number in range(10):
        assert (await play(hub, commitment)).status_code == 201, number
    assert (await play(hub, commitment)).json()["code"] == "too_many_plays"
    place = f"/api/v1/sealed/{commitment}/opening"
    later = {"opens_at": (now() + timedelta(days=8)).isoformat()}
    assert (await hub.client.put(place, json=later, headers=hub.auth())).json()["code"] == "later_date"
    assert (await hub.client.put(place, json={}, headers=hub.auth("bob"))).status_code == 403


async def test_examples_that_were_exchanged_do_not_open(hub, command):
    first, second = await sealed(hub), await sealed(hub)
    with hub.database.write(HUB) as session:
        other = session.scalars(select(SealedSet.content).where(SealedSet.commitment == second)).one()
        session.execute(update(SealedSet).where(SealedSet.commitment == first).values(content=other))
    await hub.client.put(f"/api/v1/sealed/{first}/opening", json={}, headers=hub.auth())
    work(hub)
    found = await shown(hub, first)
    assert (found["state"], found["opened_at"]) == ("sealed", None)


async def test_a_due_set_opens_by_itself(hub, command):
    commitment = await sealed(hub)
    with hub.database.write(HUB) as session:
        session.execute(update(SealedSet).values(opens_at=now() - timedelta(seconds=1)))
    work(hub)
    assert (await shown(hub, commitment))["state"] == "opened"


def test_the_key_must_be_outside_of_the_data_folder(tmp_path):
    with pytest.raises(ValueError, match="outside of the data folder"):
        Settings(data=tmp_path, seal_key_file=tmp_path / "seal.key")
