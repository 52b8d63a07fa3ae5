"""Verifications over the API: who may ask, what is asked once, and what a report does to a run."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from sqlalchemy import select
from wander.types import EnvironmentInfo
from wander.wire import EnvironmentPin, Platform, Problem
from wander.wire.verification import Divergence, ReplayReport, VerifiedWith
from wander_hub import __version__
from wander_hub.environments.models import Version
from wander_hub.identity import HUB
from wander_hub.jobs import JobContext, JobWorker, TableQueue
from wander_hub.jobs.models import Job
from wander_hub.jobs.table import MAX_ATTEMPTS
from wander_hub.runs import service as runs
from wander_hub.verification import service
from wander_hub.verification.levels import level_from
from wander_hub.verification.program import ClientProgram
from wander_hub.verification.worker import Replayer

RUN = "01JRUN0000000000000000000A"


@pytest.fixture
async def run(hub: Any, run_of: Any) -> str:
    """A run by alice that the hub will play again."""
    manifest, rollouts = run_of(await hub.publish(), reward=0.5)
    answer = await hub.post_run(manifest, rollouts)
    assert answer.status_code == 201, answer.text
    return RUN


async def ask(hub: Any, run_id: str = RUN, user: str | None = "bob", sample: int | None = None) -> Any:
    headers = hub.auth(user) if user else {}
    return await hub.client.post(
        f"/api/v1/runs/{run_id}/verifications", json={"sample": sample}, headers=headers
    )


async def listed(hub: Any, run_id: str = RUN) -> list[dict[str, Any]]:
    return (await hub.get(f"/api/v1/runs/{run_id}/verifications")).json()["data"]


def report(**fields: Any) -> ReplayReport:
    counts = {"expected": 6, "recorded": 6, "replayed": 6, "same": 6, "differing": 0, "failed": 0}
    return ReplayReport(run_id=RUN, **{**counts, **fields})


def surroundings() -> VerifiedWith:
    info = EnvironmentInfo(name="reverse-text", kind="single_turn")
    return VerifiedWith(
        environment=EnvironmentPin(owner="alice", name="reverse-text", version="0.1.0", info=info),
        platform=Platform(wander="0.1.0", python="3.11", system="Linux", machine="x86_64"),
    )


def play(hub: Any, found: ReplayReport, made_with: VerifiedWith | None = None) -> None:
    """Do the waiting job, with a report that somebody else made."""
    queue = TableQueue(hub.database)
    kept_with = made_with or surroundings()

    def handler(context):
        return lambda session: service.store_report(session, context.lease.job_id, found, kept_with)

    assert JobWorker(queue, {service.KIND: handler}, "test").run_one()


async def test_posted_runs_are_replayed_automatically(hub, run):
    (found,) = await listed(hub)
    assert (found["state"], found["requested_by"], found["sample"]) == ("queued", None, None)
    play(hub, report())
    detail = (await hub.get(f"/api/v1/runs/{run}")).json()
    assert (detail["level"], detail["level_reason"]) == (
        "replayed",
        "the hub replayed all 6 rollouts, with the same messages, metrics and rewards",
    )
    (found,) = await listed(hub)
    assert (found["state"], found["report"]["same"]) == ("done", 6)
    assert found["made_with"]["platform"]["system"] == "Linux"


async def test_anyone_may_request_a_replay_and_gets_the_waiting_one(hub, run):
    play(hub, report())
    first = await ask(hub)
    assert (first.status_code, first.json()["requested_by"]) == (201, "bob")
    again = await ask(hub, user="alice")
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    other = await ask(hub, user="alice", sample=2)
    assert (other.status_code, other.json()["sample"]) == (201, 2)
    assert len(await listed(hub)) == 3
    assert (await ask(hub, user=None)).status_code == 401
    assert (await ask(hub, "nowhere")).status_code == 404
    assert (await ask(hub, sample=0)).status_code == 422


async def test_one_different_rollout_removes_the_level_and_the_rank(hub, run):
    play(hub, report())
    assert (await ask(hub)).status_code == 201
    wrong = Divergence(example_id="0", index=1, difference="the reward is `0.0`, not `1.0`")
    play(hub, report(same=5, differing=1, divergences=[wrong]))
    detail = (await hub.get(f"/api/v1/runs/{run}")).json()
    assert detail["level"] == "claimed"
    assert "1 of 6 rollouts produced different results" in detail["level_reason"]
    page = (await hub.get(f"/runs/{run}")).text
    assert "5 of 6 rollouts matched" in page
    assert "the reward is `0.0`, not `1.0`" in page
    newest = (await listed(hub))[0]
    assert newest["report"]["divergences"][0]["difference"] == "the reward is `0.0`, not `1.0`"
    assert (await hub.get(f"/api/v1/verifications/{newest['id']}")).json() == newest


SAME: dict[str, Any] = {}
SCORED = {"method": "rescore"}
SOME = {"sampled": True, "replayed": 2, "same": 2}
ONE_DIFFERS = {"same": 5, "differing": 1}
ONE_OF_SOME = {"sampled": True, "replayed": 2, "same": 1, "differing": 1}
JUDGED = {"method": "rescore", "answered": 6, "judged": 6}
ANSWERED = {"answered": 6}
LOST = {"same": 5, "undecided": 1, "unfinished": 1, "undecided_reason": "was killed by SIGKILL"}
UNDECIDED = {"method": "rescore", "same": 5, "undecided": 1}
REFUSED = {"replayed": 0, "same": 0, "refused": "it is not deterministic"}
CONTRADICTED = {"replayed": 0, "same": 0, "refused": "other examples", "contradicted": True}
COMPLETE = ("complete", "all expected rollouts were posted")


@pytest.mark.parametrize(
    ("found", "after"),
    [
        ([], "complete"),
        ([SAME], "replayed"),
        ([SCORED], "rescored"),
        ([SCORED, SAME], "replayed"),
        ([SAME, SCORED], "replayed"),
        ([UNDECIDED], "unverifiable"),
        ([SCORED, UNDECIDED], "rescored"),
        ([UNDECIDED, SCORED], "rescored"),
        ([REFUSED], "unverifiable"),
        ([REFUSED, SAME], "replayed"),
        ([SAME, REFUSED], "replayed"),
        ([SOME], "complete"),
        ([REFUSED, SOME], "unverifiable"),
        ([SAME, SOME], "replayed"),
        ([ONE_DIFFERS], "claimed"),
        ([REFUSED, ONE_DIFFERS], "claimed"),
        ([SAME, ONE_DIFFERS], "claimed"),
        ([SAME, SAME, ONE_DIFFERS], "claimed"),
        ([SAME, ONE_OF_SOME], "claimed"),
        ([CONTRADICTED], "claimed"),
        ([CONTRADICTED, REFUSED], "claimed"),
        ([ONE_DIFFERS, SAME], "replayed"),
        ([ONE_DIFFERS, ONE_DIFFERS, SAME], "claimed"),
        ([ONE_DIFFERS, SAME, ONE_DIFFERS, SAME], "claimed"),
        ([ONE_DIFFERS, ONE_DIFFERS, SAME, SAME], "replayed"),
        ([ONE_DIFFERS, SOME], "claimed"),
        ([{"recorded": 5, "replayed": 5, "same": 5}], "unverifiable"),
        ([ONE_DIFFERS, SCORED], "claimed"),
        ([ONE_DIFFERS, SCORED, SCORED], "claimed"),
        ([SCORED, ONE_DIFFERS, SCORED], "claimed"),
        ([CONTRADICTED, SCORED], "claimed"),
        ([ONE_DIFFERS, JUDGED, SCORED], "claimed"),
        ([ONE_DIFFERS, SCORED, SAME], "replayed"),
        ([{**ONE_DIFFERS, **SCORED}, SCORED], "rescored"),
        ([{**ONE_DIFFERS, **SCORED}, SAME], "replayed"),
        ([JUDGED], "complete"),
        ([ANSWERED], "complete"),
        ([UNDECIDED, JUDGED], "complete"),
        ([JUDGED, REFUSED], "complete"),
        ([{"rescored": 1}], "rescored"),
        ([{"other_output": 6}], "replayed"),
        ([{"rescored": 1}, SAME], "replayed"),
        ([LOST], "unverifiable"),
        ([LOST, SAME], "replayed"),
        ([SAME, LOST], "replayed"),
    ],
)
def test_a_level_comes_from_the_best_evidence(found, after):
    reports = [(report(**one), True) for one in found]
    assert level_from(COMPLETE, reports)[0] == after
    assert level_from(("claimed", "1 of 6 rollouts missing"), reports) == (
        "claimed",
        "1 of 6 rollouts missing",
    )


def test_values_that_a_replay_takes_from_the_record_are_listed():
    told = level_from(COMPLETE, [(report(**JUDGED), True)])[1]
    assert told.endswith("the same rewards; the judge's answers are taken as recorded")
    told = level_from(COMPLETE, [(report(**ANSWERED), True)])[1]
    assert told.endswith("; the answers of other models are taken as recorded")


def test_a_smaller_replay_lowers_the_level_only_if_it_finds_a_difference():
    for found in (REFUSED, UNDECIDED, SOME):
        assert level_from(COMPLETE, [(report(**found), False)]) == COMPLETE
    assert level_from(COMPLETE, [(report(**ONE_OF_SOME), False)])[0] == "claimed"
    scored = report(**ONE_DIFFERS, **SCORED), False
    assert level_from(COMPLETE, [scored]) == COMPLETE
    for reports in ([(report(), True), scored, scored], [scored, (report(), True)]):
        assert level_from(COMPLETE, reports)[0] == "replayed"
    assert level_from(COMPLETE, [(report(**ONE_DIFFERS), True), scored])[0] == "claimed"


async def test_requesters_cancel_and_managers_postpone_replays(hub, run):
    (mine,) = await listed(hub)
    path = f"/api/v1/verifications/{mine['id']}"
    assert (await hub.client.delete(path)).status_code == 401
    assert (await hub.client.delete(path, headers=hub.auth("bob"))).status_code == 403
    answer = await hub.client.delete(path, headers=hub.auth("alice"))
    assert (answer.status_code, answer.json()["state"]) == (200, "queued"), "which nobody asked for"
    asked = (await ask(hub, sample=2)).json()
    answer = await hub.client.delete(f"/api/v1/verifications/{asked['id']}", headers=hub.auth("alice"))
    assert (answer.status_code, answer.json()["state"]) == (200, "queued"), "which another user asked for"
    answer = await hub.client.delete(f"/api/v1/verifications/{asked['id']}", headers=hub.auth("bob"))
    assert answer.json()["state"] == "canceled"


async def test_a_running_verification_of_a_rival_is_put_off_once(hub, run):
    (mine,) = await listed(hub)
    queue, path = TableQueue(hub.database), f"/api/v1/verifications/{mine['id']}"
    assert queue.claim("w1", [service.KIND])
    answer = await hub.client.delete(path, headers=hub.auth("alice"))
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")
    assert queue.claim("w2", [service.KIND])
    answer = await hub.client.delete(path, headers=hub.auth("alice"))
    assert (answer.status_code, answer.json()["code"]) == (409, "put_off_before")
    assert (await hub.get(f"/api/v1/runs/{run}")).json()["level"] == "complete"


async def test_requesting_a_replay_gives_no_priority(hub, run, run_of, make_wheel):
    """The hub's own verifications, and those that somebody asks for, have one queue, with turns by user."""
    sha256 = await hub.publish(make_wheel(version="0.2.0"))
    play(hub, report())
    for number in range(3):
        manifest, rollouts = run_of(sha256, version="0.2.0", run_id=f"01RUN{number:021d}", model=f"m{number}")
        assert (await hub.post_run(manifest, rollouts)).status_code == 201
    for sample in (1, 2, 3):  # bob's
        assert (await ask(hub, sample=sample)).status_code == 201
    taken: list[str] = []

    def handler(context):
        taken.append(context.lease.payload["run_id"])
        return lambda session: None

    worker = JobWorker(TableQueue(hub.database), {service.KIND: handler}, "test")
    while worker.run_one():
        pass
    assert [one == RUN for one in taken] == [True, False, True, False, True, False]


@pytest.mark.parametrize(
    ("seconds", "model_seconds", "limit"),
    [(0.0, 0.0, 60), (1.5, 0.0, 87), (100.0, 100.0, 60), (100.0, 90.0, 240), (1e6, 0.0, 3600)],
)
async def test_the_time_limit_of_a_replay_follows_from_the_recorded_time(
    hub, run_of, make_wheel, seconds, model_seconds, limit
):
    manifest, rollouts = run_of(await hub.publish(make_wheel()))
    for one in rollouts:
        one["seconds"], one["turns"][0]["model_seconds"] = seconds, model_seconds
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    with hub.database.read(HUB) as session:
        found = runs.find(session, RUN)
        assert service.time_limit_of(found, hub.settings.verification_seconds) == pytest.approx(limit)


async def test_the_number_of_waiting_replays_per_user_is_limited(hub, run, monkeypatch):
    monkeypatch.setattr(service, "MOST_WAITING", 2)
    assert [(await ask(hub, sample=size)).status_code for size in (1, 2, 3)] == [201, 201, 429]


async def test_a_hub_without_verification_prints_a_hint(hub, run, monkeypatch):
    off = hub.settings.model_copy(update={"verification": "off"})
    monkeypatch.setattr(hub.client._transport.app.state, "settings", off)
    answer = await ask(hub, sample=1)
    assert (answer.status_code, answer.json()["code"]) == (503, "verification_off")
    assert f"wander runs replay {RUN}" in answer.json()["hint"]


async def test_a_hub_starts_boxes_only_if_its_operator_allows_them(hub, run_of, make_wheel, monkeypatch):
    sha256 = await hub.publish(make_wheel())
    with hub.database.write(HUB) as session:
        session.query(Version).one().environment_kind = "shell"
    manifest, rollouts = run_of(sha256, reward=0.5)
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    assert await listed(hub) == []
    answer = await ask(hub)
    assert (answer.status_code, answer.json()["code"]) == (503, "boxes_off")
    assert f"wander runs replay {RUN}" in answer.json()["hint"]
    with hub.database.read(HUB) as session:
        assert RUN not in service.list_jobless(session, hub.settings)
    allowed = hub.settings.model_copy(update={"boxes": "bwrap"})
    monkeypatch.setattr(hub.client._transport.app.state, "settings", allowed)
    with hub.database.read(HUB) as session:
        assert RUN in service.list_jobless(session, allowed)
    assert (await ask(hub)).status_code == 201


async def test_unreplayable_runs_are_not_queued(hub, run, run_of, make_wheel):
    sha256 = await hub.publish(make_wheel(version="0.2.0"))
    training, _ = run_of(sha256, version="0.2.0", run_id="01JRUN0000000000000000000B", kind="training")
    assert (await hub.post_run(training, None)).status_code == 201
    assert await listed(hub, training["run_id"]) == []
    answer = await ask(hub, training["run_id"])
    assert (answer.status_code, answer.json()["code"]) == (422, "not_replayable")


async def test_verifications_of_private_runs_are_private(hub, run):
    (found,) = await listed(hub)
    path = "/api/v1/environments/alice/reverse-text/visibility"
    private = await hub.client.put(path, json={"private": True}, headers=hub.auth("alice"))
    assert private.status_code == 200, private.text
    for path in (f"/api/v1/runs/{run}/verifications", f"/api/v1/verifications/{found['id']}"):
        assert (await hub.get(path)).status_code in (401, 404)
        assert (await hub.get(path, headers=hub.auth("bob"))).status_code == 404
        assert (await hub.get(path, headers=hub.auth("alice"))).status_code == 200
    play(hub, report())
    detail = await hub.get(f"/api/v1/runs/{run}", headers=hub.auth("alice"))
    assert detail.json()["level"] == "replayed"


async def test_every_divergence_is_listed_page_by_page(hub, run):
    wrong = [
        Divergence(example_id=str(n), index=0, part="completion", message=3, difference=f"message 3 is `{n}`")
        for n in range(250)
    ]
    play(hub, report(same=0, differing=6, divergences=wrong))
    (found,) = await listed(hub)
    assert len(found["report"]["divergences"]) == service.SHOWN_DIVERGENCES
    assert found["gave"] == "claimed"
    path = f"/api/v1/verifications/{found['id']}/divergences"
    page = (await hub.get(f"{path}?offset=240&limit=100")).json()
    assert (page["total"], page["offset"], len(page["data"])) == (250, 240, 10)
    assert page["data"][0] == wrong[240].model_dump()
    assert (await hub.get(f"{path}?limit=5000")).status_code == 422
    assert (await hub.get("/api/v1/verifications/4711/divergences")).status_code == 404


class Refusing(BaseHTTPRequestHandler):
    """A hub that no longer knows the token it lent."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("Content-Type", "application/problem+json")
        self.end_headers()
        refusal = Problem(title="Unauthorized", status=401, code="bad_token", detail="unknown or revoked")
        self.wfile.write(refusal.model_dump_json().encode())


async def test_a_token_that_the_hub_does_not_know_puts_a_replay_off_and_asks_for_the_address(
    hub, run, tmp_path
):
    await ask(hub)
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        program = ClientProgram(hub.database, url, tmp_path, sandbox=False, seconds=60)
        storage = hub.client._transport.app.state.storage
        replayer = Replayer(program, hub.database, storage)
        assert JobWorker(TableQueue(hub.database), {service.KIND: replayer}, "test").run_one()
        server.shutdown()
    (found,) = await listed(hub)
    assert (found["state"], "unknown or revoked" in found["error"]) == ("queued", True), found
    assert f"is {url} another hub?" in found["error"]
    with hub.database.read() as session:
        (job,) = session.scalars(select(Job).where(Job.kind == service.KIND))
        assert (job.attempt, job.max_attempts) == (1, MAX_ATTEMPTS + 1), "which does not count"


async def test_a_replay_waits_without_an_error_while_its_hub_is_away(hub, run, tmp_path, caplog):
    program = ClientProgram(hub.database, "http://127.0.0.1:1", tmp_path, sandbox=False, seconds=60)
    replayer = Replayer(program, hub.database, hub.client._transport.app.state.storage)
    assert JobWorker(TableQueue(hub.database), {service.KIND: replayer}, "test").run_one()
    (found,) = await listed(hub)
    assert found["state"] == "queued", found
    assert "cannot be reached" in found["error"]
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("set_not_found", "done"),
        ("set_sealed", "done"),
        ("bad_rollouts", "done"),
        ("new_code", "queued"),
    ],
)
async def test_only_the_faults_of_a_run_end_its_replay(hub, run, tmp_path, monkeypatch, code, state):
    """A run may name a sealed set that does not exist. The replay waits after an error of the hub."""
    monkeypatch.setattr(ClientProgram, "_execute", lambda *_: {"error": {"code": code, "message": "no"}})
    program = ClientProgram(hub.database, "http://hub", tmp_path, sandbox=False, seconds=60)
    replayer = Replayer(program, hub.database, hub.client._transport.app.state.storage)
    worker = JobWorker(TableQueue(hub.database, retry_seconds=0), {service.KIND: replayer}, "test")
    for _ in range(MAX_ATTEMPTS + 1):
        worker.run_one()
    (found,) = await listed(hub)
    assert found["state"] == state, found


async def test_levels_are_asked_for_one_by_one_and_rescoring_gives_its_own(hub, run):
    (first,) = await listed(hub)
    assert (first["sought"], first["gave"]) == ("highest", None)
    asked = await hub.client.post(
        f"/api/v1/runs/{run}/verifications", json={"level": "rescored"}, headers=hub.auth("bob")
    )
    assert (asked.status_code, asked.json()["sought"]) == (201, "rescored")
    play(hub, report(method="rescore"))
    detail = (await hub.get(f"/api/v1/runs/{run}")).json()
    assert (detail["level"], detail["level_reason"]) == (
        "rescored",
        "the hub rescored the transcripts of all 6 rollouts, with the same rewards; "
        "the answers of tools are self-reported",
    )
    first = (await listed(hub))[-1]
    assert (first["gave"], first["made_with"]["hub"]) == ("rescored", __version__)
    play(hub, report())
    assert (await hub.get(f"/api/v1/runs/{run}")).json()["level"] == "replayed"


async def test_samples_for_replays_are_unpredictable(hub, run, monkeypatch):
    commands: list[list[str]] = []
    play(hub, report())

    def answer(self: ClientProgram, context: JobContext, words: list[str], *_: str) -> dict[str, Any]:
        commands.append(words)
        found = report(sampled=True, replayed=2, same=2, sample_seed=int(words[words.index("--seed") + 1]))
        data = found.model_dump(mode="json")
        return {"level": found.level, **data, "made_with": surroundings().model_dump(mode="json")}

    monkeypatch.setattr(ClientProgram, "_answer", answer)
    program = ClientProgram(hub.database, "http://hub", hub.settings.data, sandbox=False, seconds=60)
    replayer = Replayer(program, hub.database, hub.client._transport.app.state.storage)
    for user in ("alice", "bob"):
        assert (await ask(hub, user=user, sample=2)).status_code == 201
        JobWorker(TableQueue(hub.database), {service.KIND: replayer}, "test").run_one()
    seeds = [words[words.index("--seed") + 1] for words in commands if "--seed" in words]
    assert len(set(seeds)) == 2
    told = [one["report"]["sample_seed"] for one in await listed(hub) if one["sample"]]
    assert sorted(map(str, told)) == sorted(seeds), "the seed is public once the sample was looked at"


async def test_the_environment_page_shows_a_recorded_rollout(hub, run):
    found = surroundings()
    found.environment.info.kind = "heard_by_the_hub"
    play(hub, report(), found)
    page = (await hub.get("/alice/reverse-text", headers={"Accept": "text/html"})).text
    assert "heard-by-the-hub" in page
