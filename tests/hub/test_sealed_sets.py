"""Sealed task sets on the hub: what its API accepts, what it stores, and what opens.

Only the `wander` command is replaced here; tests/system/test_sealed_sets.py runs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zstandard
from small_models import checkpoint
from sqlalchemy import select, update
from staged_uploads import pushed
from wander.evals.stats.summary import summarize
from wander.models.pulled import PulledModel
from wander.types import Rollout
from wander.wire import RunSummary
from wander.wire.models import ModelRevision
from wander.wire.transfers import commitment_of, make_set
from wander_hub.database import now
from wander_hub.identity import HUB
from wander_hub.jobs import Job, JobContext, TableQueue
from wander_hub.operation.backup import back_up
from wander_hub.operation.job_queue import settle_failures
from wander_hub.sealed import memory, service
from wander_hub.sealed import worker as sealed_worker
from wander_hub.sealed.cipher import SealKeeper
from wander_hub.sealed.models import SealedPlay, SealedSet
from wander_hub.settings import Settings
from wander_hub.verification import program
from wander_hub.verification.program import MODELS

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
        self.words: list[str] = []
        self.model_files: set[str] = set()
        self.is_disk_full = False

    def lacks_room(self) -> bool:
        return self.is_disk_full

    def answer_in_memory(
        self,
        context: JobContext,
        words: list[str],
        version_id: int,
        *,
        folder: Path,
        variables: Any,
        **limits: Any,
    ) -> dict[str, Any]:
        content = (folder / "set.jsonl").read_bytes()
        if words[0] == "seal":
            data = {"examples": len(ROWS), "refused": self.refused}
            return {"data": data} if self.error is None else {"error": self.error}
        assert "OPENAI_API_KEY" not in variables, "the environment's own calls would use it"
        self.words = words
        for path in (folder / MODELS).glob("*/*/*.json"):
            record = ModelRevision.model_validate_json(path.read_bytes())
            assert PulledModel(path.with_suffix(""), record).fault() is None
            self.model_files = {file.filename for file in record.files}
        self.keys.append(variables.get("WANDER_SEALED_KEY"))
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


def work(hub, **settings: Any) -> None:
    """Do all jobs about sealed sets, also those that wait after a failed attempt."""
    queue = settle_failures(TableQueue.of(hub.settings, hub.database))
    with hub.database.write(HUB) as session:
        session.execute(update(Job).values(run_after=now() - timedelta(hours=1)))
    storage = hub.client._transport.app.state.storage
    changed = hub.settings.model_copy(update=settings)
    worker = sealed_worker.worker(changed, hub.database, storage, queue, "http://hub")
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
    command.error, command.refused = None, [{"row": 2, "reason": MARKER}]
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


async def test_a_play_that_was_killed_is_not_sent_twice(hub, command):
    commitment = await sealed(hub)
    await play(hub, commitment)
    with hub.database.write(HUB) as session:
        session.execute(update(SealedPlay).values(exposed_at=now()))
    work(hub)
    found = await shown(hub, commitment)
    (row,) = found["plays"]
    assert ("the hub stopped during the play" in row["error"], found["exposures"]) == (True, 1)
    assert command.keys == []


async def test_a_fault_of_the_hub_does_not_lose_the_key_of_a_play(hub, command, monkeypatch):
    commitment = await sealed(hub)
    await play(hub, commitment)
    keeper = hub.settings.seal_key_file
    keeper.rename(keeper.with_suffix(".lost"))
    work(hub)
    assert [row["state"] for row in (await shown(hub, commitment))["plays"]] == ["queued"]
    keeper.with_suffix(".lost").rename(keeper)
    with monkeypatch.context() as patched:
        patched.setattr(sealed_worker, "_write", lambda *_: os.open("/dev/full/x", os.O_RDONLY))
        work(hub)
    assert [row["state"] for row in (await shown(hub, commitment))["plays"]] == ["queued"]
    work(hub)
    assert [row["level"] for row in (await shown(hub, commitment))["plays"]] == ["sealed"]
    assert command.keys == [KEY]


async def test_a_full_disk_or_a_retried_job_does_not_change_why_a_set_is_refused(hub, command):
    commitment = str((await create(hub, make_set(ROWS))).json()["commitment"])
    command.error, command.is_disk_full = {"code": "uv_failed"}, True
    work(hub)
    assert (await shown(hub, commitment))["state"] == "checking"
    command.is_disk_full = False
    work(hub)
    refused = await shown(hub, commitment)
    assert (refused["state"], "`uv_failed`" in refused["error"]) == ("refused", True)
    with hub.database.write(HUB) as session:
        session.execute(update(Job).where(Job.kind == service.CHECK).values(state="queued"))
    work(hub)
    assert await shown(hub, commitment) == refused


async def test_a_row_without_evidence_shows_no_reward(hub, command):
    """A submitter could send rollouts that the hub does not post, to keep them from the readers."""
    commitment = await sealed(hub)
    await play(hub, commitment)
    work(hub)
    await hub.client.put(f"/api/v1/sealed/{commitment}/opening", json={}, headers=hub.auth())
    work(hub, max_run_bytes=1)
    found = await shown(hub, commitment)
    (row,) = found["plays"]
    assert (found["state"], row["run_id"], row["level"], row["reward_mean"]) == ("opened", None, None, None)
    assert "larger than this hub's limit" in row["error"]


async def test_what_cannot_be_sealed_played_or_opened(hub, command):
    content = make_set(ROWS)
    early = await create(hub, content, opens_at="2020-01-01T00:00:00Z")
    assert early.json()["code"] == "bad_date"
    assert (await create(hub, f"{MARKER}\n".encode())).json()[
        "detail"
    ] == "line 1: it is not valid JSON in UTF-8"
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


async def test_the_hub_plays_its_own_models_without_an_exposure(hub, command, monkeypatch):
    files = checkpoint()
    made = await pushed(hub.client, hub.auth("bob"), files, owner="bob", private=True)
    assert made.status_code == 201, made.text
    commitment = await sealed(hub)
    model = {"model": "bob/ttt", "endpoint": None, "key": None}
    for user, changes, code in (
        ("alice", {}, "model_not_found"),
        ("bob", {"key": KEY}, "key_unused"),
        ("bob", {"model": "echo"}, "bad_model"),
    ):
        assert (await play(hub, commitment, user, **(model | changes))).json()["code"] == code
    assert (await play(hub, commitment, **model)).status_code == 201
    work(hub)
    found = await shown(hub, commitment)
    (row,) = found["plays"]
    name = f"bob/ttt@{made.json()['revision']}"
    assert (row["model"], row["host"], row["level"], found["exposures"]) == (name, None, "sealed", 0)
    assert command.words[command.words.index("-m") + 1] == f"hub:{name}"
    assert "-b" not in command.words
    assert command.model_files == set(files)
    for _ in range(9):
        assert (await play(hub, commitment, **model)).status_code == 201
    work(hub)
    assert (await play(hub, commitment, **model)).json()["code"] == "too_many_plays"

    user = "alice"
    assert (await pushed(hub.client, hub.auth(user), files)).status_code == 201
    monkeypatch.setattr(service, "_WEIGHT_BYTES", 2**40)
    refused = await play(hub, commitment, user, model="alice/ttt", endpoint=None, key=None)
    assert refused.json()["code"] == "model_too_large"
    monkeypatch.setattr(service, "find_spec", lambda name: None)
    refused = await play(hub, commitment, user, model="alice/ttt", endpoint=None, key=None)
    assert refused.json()["code"] == "no_engine"


async def test_nothing_keeps_a_due_set_from_opening(hub, command, monkeypatch):
    """Neither a crash after a run was posted, nor a failed job, nor limits of the submitter, nor a clock that
    moves back."""
    commitment = await sealed(hub)
    await play(hub, commitment)
    work(hub)
    post_run, crashes = sealed_worker._post_run, [True]

    def post_and_crash(*arguments: Any) -> str:
        run_id = post_run(*arguments)
        if crashes:
            raise RuntimeError(crashes.clear() or MARKER)
        return run_id

    monkeypatch.setattr(sealed_worker, "_post_run", post_and_crash)
    await hub.client.put(f"/api/v1/sealed/{commitment}/opening", json={}, headers=hub.auth())
    work(hub, quota_runs=0, max_open_transfers=0)
    with hub.database.write(HUB) as session:
        assert session.scalars(select(SealedSet.state)).one() == "opening"
        failed = Job.kind == service.OPENING, Job.state == "failed"
        long_ago = now() - timedelta(hours=1)
        assert session.execute(update(Job).where(*failed).values(finished_at=long_ago)).rowcount == 1
        session.execute(update(SealedSet).values(opens_at=now() + timedelta(seconds=1)))
    sweep = sealed_worker.OpeningSweep(hub.database, TableQueue.of(hub.settings, hub.database))
    monkeypatch.setattr(sealed_worker, "now", lambda: now() + timedelta(minutes=1))
    sweep()
    monkeypatch.setattr(sealed_worker, "now", now)
    work(hub, quota_runs=0, max_open_transfers=0)
    found = await shown(hub, commitment)
    assert found["state"] == "opened"
    (row,) = found["plays"]
    assert (row["error"], row["level"]) == (None, "complete")
    (run,) = (await hub.get("/api/v1/runs")).json()["data"]
    assert run["run_id"] == row["run_id"]


async def test_a_lost_key_file_is_not_replaced(hub, command):
    await sealed(hub)
    hub.settings.seal_key_file.unlink()
    refused = await create(hub, make_set(ROWS))
    assert (refused.status_code, refused.json()["code"]) == (503, "seal_key_unavailable")
    assert not hub.settings.seal_key_file.exists()


def test_processes_that_create_the_key_together_use_the_same_key(tmp_path):
    keepers = [SealKeeper(tmp_path / "seal.key") for _ in range(16)]
    with ThreadPoolExecutor(len(keepers)) as threads:
        made = list(threads.map(lambda keeper: keeper.new_key("set", first=True), keepers))
    assert [path.name for path in tmp_path.iterdir()] == ["seal.key"]
    assert [keepers[0].unwrap(wrapped, "set") for _, wrapped in made] == [key for key, _ in made]


@pytest.mark.parametrize(
    ("endpoint", "is_accepted"),
    [
        ("http://10.1.2.3/v1", True),
        ("http://10.2.2.3/v1", False),
        ("http://192.0.2.1/v1", False),
        ("http://8.8.8.8/v1", False),
        ("https://8.8.8.8/v1", True),
        ("http://[::ffff:8.8.8.8]/v1", False),
    ],
)
def test_a_listed_network_allows_http_to_its_addresses_and_to_no_others(tmp_path, endpoint, is_accepted):
    settings = Settings(data=tmp_path, seal_networks=["10.1.0.0/16"])
    assert (service._address_fault(endpoint, settings) is None) is is_accepted


async def test_the_key_of_a_canceled_play_is_deleted(hub, command):
    commitment = await sealed(hub)
    await play(hub, commitment)
    with hub.database.write(HUB) as session:
        job = session.scalars(select(Job).where(Job.kind == service.PLAY)).one()
        settle_failures(TableQueue.of(hub.settings, hub.database)).cancel(session, job.id)
        assert memory.take_key(job.payload["key"]) is None


async def test_a_full_disk_does_not_refuse_a_set(hub, command, monkeypatch):
    monkeypatch.setattr(sealed_worker, "_write", lambda *_: os.open("/dev/full/x", os.O_RDONLY))
    commitment = await sealed(hub)
    assert (await shown(hub, commitment))["state"] == "checking"


def test_only_the_folders_of_killed_processes_are_swept():
    code = (
        "import os; from wander_hub.sealed.memory import memory_folder\n"
        "with memory_folder() as folder: print(folder, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    left = Path(killed.stdout.strip())
    (left / "set.jsonl").write_text(MARKER)
    with memory.memory_folder() as used:
        for folder in (left, used):
            os.utime(folder, (0, 0))
        memory.sweep()
        assert (left.exists(), used.exists()) == (False, True)


def test_shown_rewards_are_rounded():
    """Otherwise, the code of an environment could write hidden text into a reward."""
    fields = dict.fromkeys(RunSummary.model_fields, 1)
    summary = RunSummary.model_construct(**fields | {"reward_mean": 123456.789, "reward_low": 0.123456789})
    shown_part = service.public_part(summary)
    assert (shown_part["reward_mean"], shown_part["reward_low"]) == (123500.0, 0.1235)


async def test_examples_that_were_exchanged_do_not_open(hub, command):
    first, second = await sealed(hub), await sealed(hub)
    with hub.database.write(HUB) as session:
        other = session.scalars(select(SealedSet.content).where(SealedSet.commitment == second)).one()
        session.execute(update(SealedSet).where(SealedSet.commitment == first).values(content=other))
    await hub.client.put(f"/api/v1/sealed/{first}/opening", json={}, headers=hub.auth())
    work(hub)
    found = await shown(hub, first)
    assert (found["state"], found["opened_at"]) == ("sealed", None)


async def test_the_page_of_an_opened_set_shows_each_row_whole(hub, command):
    rows = [{"question": f"line{separator}break"} for separator in "\u2028\u2029\x85\x1c\r\n"]
    commitment = str((await create(hub, make_set(rows))).json()["commitment"])
    work(hub)
    await hub.client.put(f"/api/v1/sealed/{commitment}/opening", json={}, headers=hub.auth())
    work(hub)
    with hub.database.read(HUB) as session:
        assert [json.loads(row) for row in service.opened_rows(session, commitment)] == rows


async def test_a_due_set_opens_by_itself(hub, command):
    commitment = await sealed(hub)
    with hub.database.write(HUB) as session:
        session.execute(update(SealedSet).values(opens_at=now() - timedelta(seconds=1)))
    work(hub)
    assert (await shown(hub, commitment))["state"] == "opened"


def test_the_key_must_be_outside_of_the_data_folder(tmp_path):
    with pytest.raises(ValueError, match="outside of the data folder"):
        Settings(data=tmp_path, seal_key_file=tmp_path / "seal.key")


async def test_workers_that_share_a_queue_play_each_set_once(hub, command):
    commitment = await sealed(hub)
    for _ in range(4):
        assert (await play(hub, commitment)).status_code == 201
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: work(hub), range(2)))
    found = await shown(hub, commitment)
    assert (found["exposures"], command.keys) == (4, [KEY] * 4)
    assert [row["reward_mean"] for row in found["plays"]] == [0.5] * 4


async def test_a_command_that_fills_the_memory_is_ended(hub, monkeypatch):
    """Its folder is in memory, which its processes do not count as theirs."""
    await hub.publish()
    fills = "import os, time; open(os.environ['TMPDIR'] + '/x', 'wb').truncate(1 << 20); time.sleep(600)"
    monkeypatch.setattr(program, "_START", fills)
    commitment = str((await create(hub, make_set(ROWS))).json()["commitment"])
    work(hub, seal_memory_bytes=1 << 20)
    found = await shown(hub, commitment)
    assert (found["state"], found["error"]) == ("refused", "it writes more than 524,288 bytes")
