"""`wander post`: in parts, private, signed; `wander runs publish|withdraw`; `wander auth key`."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from command_line import HubRoom, make_wheel
from saved_runs import write_run
from wander.evals.store.folder import RunFolder
from wander.types import SamplingArgs
from wander_client.errors import Unavailable
from wander_client.evaluate.settings import EvaluationSettings
from wander_client.hub import posting
from wander_client.hub.api import HubApi
from wander_client.runs import posting as run_posting
from wander_client.suites.file import Suite, SuiteRun


@pytest.fixture
def published(hub: HubRoom, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HubRoom:
    """A hub with the environment, whose administrator is logged in."""
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    hub.publish(make_wheel(tmp_path))
    return hub


@pytest.fixture
def run(published: HubRoom, tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "one", rewards=[1.0, 0.0, 1.0, 1.0, 0.0])


class Flaky(httpx.BaseTransport):
    """Loses requests, or their answers, as `lost` says of their number; counts chunks."""

    def __init__(self, inner: httpx.BaseTransport, lost: Callable[[int], str | None]) -> None:
        self._inner, self._lost = inner, lost
        self.requests = 0
        self.chunks: list[int] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        loss = self._lost(self.requests)
        if loss == "before":
            raise httpx.ConnectError("no route to the hub")
        if request.url.path.endswith("/files/rollouts.jsonl"):
            self.chunks.append(int(request.url.params["offset"]))
        answer = self._inner.handle_request(request)
        if loss == "after":
            raise httpx.ReadError("the connection broke")
        return httpx.Response(503) if loss == "busy" else answer


def sent(hub: HubRoom, run: Path, transport: httpx.BaseTransport, **options) -> object:
    """Post a run folder with two rollouts a chunk."""
    folder = RunFolder.open(run)
    api = HubApi("https://testserver", hub.token, transport=transport)
    with posting.pack_run(folder.manifest, posting.files_of(run)) as parcel:
        return posting.post(api, parcel, sleep=lambda seconds: None, **options)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "MAX_CHUNK_ROLLOUTS", 2)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("loss", ["before", "after", "busy"])
def test_every_posting_request_may_fail_once(published: HubRoom, run: Path, loss: str):
    flaky = Flaky(published.transport, lambda number: loss if number % 2 else None)
    told: list[str] = []
    heard: list[tuple[int, int]] = []
    detail, new = sent(
        published, run, flaky, trouble=told.append, told=lambda done, total: heard.append((done, total))
    )
    assert (new, detail.summary.rollouts, detail.level) == (True, 5, "complete")
    assert len(heard) == 3
    assert heard == sorted(heard)
    assert heard[-1][0] == heard[-1][1]
    assert all(words.endswith("trying again") for words in told)
    assert len(told) >= 5
    assert detail.posted_by == "admin"


@pytest.mark.usefixtures("small_chunks")
def test_parts_sent_by_a_killed_upload_are_not_sent_again(published: HubRoom, run: Path):
    def dies(number: int) -> str | None:
        if number == 4:
            raise KeyboardInterrupt  # as good as any way to stop in the middle
        return None

    with pytest.raises(KeyboardInterrupt):
        sent(published, run, Flaky(published.transport, dies))
    rest = Flaky(published.transport, lambda number: None)
    detail, new = sent(published, run, rest)
    assert (new, detail.summary.rollouts) == (True, 5)
    assert len(rest.chunks) == 1
    assert rest.chunks[0] > 0
    third = Flaky(published.transport, lambda number: None)
    assert sent(published, run, third)[1] is False
    assert third.chunks == []


def test_posting_to_an_unreachable_hub_fails_with_a_hint(
    published: HubRoom, run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(posting, "PATIENCE", 1.0)
    with pytest.raises(Unavailable) as caught:
        sent(published, run, Flaky(published.transport, lambda number: "before" if number > 1 else None))
    assert "post the run again to continue" in (caught.value.hint or "")


def test_the_last_complete_line_of_a_rollout_counts(run: Path):
    folder = RunFolder.open(run)
    folder.resume()
    first = next(iter(folder.rollouts()))
    folder.append(first.model_copy(update={"reward": 0.25}))
    folder.close()
    plain = run / "rollouts.jsonl"
    with plain.open("ab") as file:
        file.write(b'{"example_id":"4","index":0,"torn')
    with posting.pack_run(folder.manifest, posting.files_of(run)) as parcel:
        assert parcel.count == 5
        lines = b"".join(parcel.parts(1000)).splitlines()
    assert [line.split(b",")[0] for line in lines] == [b'{"example_id":"%d"' % n for n in range(5)]
    assert b'"reward":0.25' in lines[0]


def test_post_private_then_publish(published: HubRoom, run: Path):
    made = published.wander("post", str(run), "--private", "--json")
    assert made.status == 0, made.err
    assert published.wander("runs", "show", str(run), "--json").data["sha256"] == made.data["sha256"]
    assert made.data["private"] is True
    run_id = made.data["run_id"]
    assert published.http.get(f"/api/v1/runs/{run_id}").status_code == 404
    assert "private" in published.wander("post", str(run)).out
    shown = published.wander("runs", "publish", str(run))
    assert shown.status == 0, shown.err
    assert published.http.get(f"/api/v1/runs/{run_id}").status_code == 200


@pytest.mark.parametrize(
    ("here", "began", "warned"),
    [
        (0.0, 0.0, False),
        (-3e8, 0.0, True),  # years behind
        (3e9, 3e9, True),
        (0.0, 3e9, True),  # played by a machine that was decades ahead
        (0.0, -9e8, False),  # a run of long ago
    ],
)
def test_a_wrong_clock_is_reported_with_the_time_of_the_hub(
    published: HubRoom, run: Path, monkeypatch: pytest.MonkeyPatch, here: float, began: float, warned: bool
):
    real, manifest = time.time, json.loads((run / "run.json").read_text())
    manifest["started_at"] = datetime.fromtimestamp(real() + began, UTC).isoformat()
    (run / "run.json").write_text(json.dumps(manifest))
    with monkeypatch.context() as patch:
        patch.setattr(run_posting, "time", SimpleNamespace(time=lambda: real() + here))
        told = published.wander("post", str(run)).err
    assert (f"{datetime.now(UTC):%Y-%m-%d}" in told) == warned, told


def test_a_posted_run_is_named_and_renamed(published: HubRoom, run: Path):
    long = published.wander("post", str(run), "--name", "x" * 101)
    assert (long.status, "at most 100 characters" in long.err) == (2, True)
    made = published.wander("post", str(run), "--name", " the short prompt ", "--json")
    assert (made.status, made.data["name"]) == (0, "the short prompt"), made.err
    run_id = made.data["run_id"]
    again = published.wander("post", str(run), "--name", "another")
    assert "already posted as `the short prompt`; `wander runs rename" in again.err
    for command in (("runs", "list", "--posted"), ("leaderboard", "admin/say-env")):
        assert "the short prompt" in published.wander(*command).out, command
    done = published.wander("runs", "rename", str(run), "the long prompt", "--json")
    assert (done.status, done.data["name"]) == (0, "the long prompt")
    assert done.data["sha256"] == made.data["sha256"]
    assert published.wander("runs", "rename", run_id, "two\nlines").status == 2
    assert published.wander("runs", "rename", run_id, "").status == 0
    assert published.http.get(f"/api/v1/runs/{run_id}").json()["name"] is None


def test_withdrawing_needs_a_reason_and_is_final(published: HubRoom, run: Path):
    run_id = published.wander("post", str(run), "--json").data["run_id"]
    unsure = published.wander("runs", "withdraw", run_id[:10], "--reason", "wrong prompt")
    assert (unsure.status, "--yes" in unsure.err) == (2, True)
    done = published.wander("runs", "withdraw", run_id[:10], "--reason", "wrong prompt", "--yes", "--json")
    assert done.status == 0, done.err
    assert done.data["withdrawn"]["reason"] == "wrong prompt"
    again = published.wander("post", str(run), "--json")
    assert again.json["error"]["code"] == "run_withdrawn"


def test_runs_are_signed_with_a_local_key(published: HubRoom, run: Path, home: Path):
    without = published.wander("post", str(run), "--sign", "--json")
    assert without.json["error"]["code"] == "no_key"
    made = published.wander("auth", "key", "new", "--name", "laptop", "--json")
    assert made.status == 0, made.err
    file = home / "config" / "signing-key.pem"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() not in made.out + made.err
    assert published.wander("auth", "key", "new", "--json").data["fingerprint"] == made.data["fingerprint"]
    posted = published.wander("post", str(run), "--sign", "--json")
    assert posted.data["signature"]["fingerprint"] == made.data["fingerprint"]
    assert "laptop" in published.wander("auth", "key", "list").out
    late = published.wander("post", str(run), "--private", "--json")
    assert "already posted publicly" in late.json["warnings"][0]
    removed = published.wander("auth", "key", "revoke", made.data["fingerprint"][:12])
    assert removed.status == 0, removed.err
    assert not file.exists()
    assert published.wander("auth", "key", "list", "--json").data[0]["revoked_at"] is not None


def test_several_runs_are_posted_together(published: HubRoom, run: Path):
    other = write_run(run.parent / "two", rewards=[0.5, 1.0])
    done = published.wander("post", str(run), str(other), str(run), "--json")
    assert done.status == 0, done.err
    ids = [RunFolder.open(each).manifest.run_id for each in (run, other)]
    assert [each["run_id"] for each in done.data["runs"]] == ids
    assert all(published.http.get(f"/api/v1/runs/{run_id}").status_code == 200 for run_id in ids)


def test_all_runs_are_checked_before_any_is_sent(published: HubRoom, run: Path):
    unpublished = write_run(run.parent / "local", rewards=[0.5, 1.0], owner=None)
    refused = published.wander("post", str(run), str(unpublished), "--json")
    assert refused.status != 0
    run_id = RunFolder.open(run).manifest.run_id
    assert published.http.get(f"/api/v1/runs/{run_id}").status_code == 404


def write_suite(place: Path, *folders: str) -> Path:
    """Write the file of a suite whose runs have these folders."""
    settings = [
        EvaluationSettings(environment="admin/say-env", model=name, sampling=SamplingArgs())
        for name in folders
    ]
    runs = [
        SuiteRun(name=name, folder=name, settings=each) for name, each in zip(folders, settings, strict=True)
    ]
    Suite(name="nightly", concurrency=1, evaluations_at_once=1, runs=runs).write(place)
    return place


def test_a_suite_is_posted_and_reported_as_a_whole(published: HubRoom, run: Path, tmp_path: Path):
    suite = write_suite(tmp_path / "runs" / "nightly", "b", "a")
    ids = [
        RunFolder.open(write_run(suite / name, rewards=[reward, 0.5], model=name)).manifest.run_id
        for name, reward in (("b", 1.0), ("a", 0.0))
    ]
    report = published.wander("runs", "report", str(suite), "--json")
    assert [each["manifest"]["run_id"] for each in report.data["runs"]] == ids
    dry = published.wander("post", str(suite), "--dry-run", "--json")
    assert [each["run_id"] for each in dry.data["runs"]] == ids
    assert published.http.get(f"/api/v1/runs/{ids[0]}").status_code == 404
    done = published.wander("post", str(suite), "--json")
    assert [each["run_id"] for each in done.data["runs"]] == ids
    assert all(published.http.get(f"/api/v1/runs/{run_id}").status_code == 200 for run_id in ids)


def test_an_incomplete_suite_is_posted_only_with_an_option(published: HubRoom, run: Path, tmp_path: Path):
    suite = write_suite(tmp_path / "runs" / "nightly", "a", "missing")
    write_run(suite / "a", rewards=[1.0, 0.5])
    refused = published.wander("post", str(suite), "--json")
    assert refused.json["error"]["code"] == "incomplete_suite"
    done = published.wander("post", str(suite), "--incomplete", "--json")
    assert [each["new"] for each in done.data["runs"]] == [True]
