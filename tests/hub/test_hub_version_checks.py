"""The hub checks what is published by itself: which versions, once each, and how their pages tell of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from wander.wire.verification import LearningPoint, LearningReport
from wander_hub import __version__
from wander_hub.jobs import JobRefused, JobWorker, TableQueue
from wander_hub.verification import version_checks
from wander_hub.verification.program import ClientProgram
from wander_hub.verification.version_checks import Checker, Learner, VersionSweep

PATH = "/api/v1/environments/alice/reverse-text/versions/0.1.0/check"
PASSED = {"id": "load.works", "status": "pass", "message": ""}
ANSWER: dict[str, Any] = {
    "schema": "wander.check/1",
    "checks": [
        PASSED,
        {"id": "rewards.gold", "status": "warn", "message": "0.2 on average"},
        {"id": "determinism.replay", "status": "fail", "message": "the reward is `0`, not `1` <b>"},
        {"id": "rewards.noop", "status": "skip", "message": "no tools"},
    ],
    "earned": {"gold": 1.0, "empty": 0.0, "demand": 0.25},
    "seconds": 1.5,
    "passed": False,
    "made_with": {"wander": "0.1.0", "python": "3.11", "wheel_sha256": "a" * 64},
}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Answer every command as `wander check` would, and keep what was asked."""
    asked: list[list[str]] = []

    def answer(self: ClientProgram, context: Any, words: list[str], *_: str) -> dict[str, Any]:
        asked.append(words)
        return dict(ANSWER)

    monkeypatch.setattr(ClientProgram, "_answer", answer)
    return asked


def worker(hub: Any) -> JobWorker:
    program = ClientProgram(hub.database, "http://hub", hub.settings.data, sandbox=True, seconds=60)
    queue = TableQueue(hub.database)
    return JobWorker(queue, {version_checks.KIND: Checker(hub.database, program)}, "checker")


def swept(hub: Any) -> VersionSweep:
    sweep = VersionSweep(hub.database, TableQueue(hub.database))
    sweep()
    return sweep


async def test_a_published_version_is_checked_and_its_page_shows_the_result(hub, commands):
    await hub.publish()
    assert (await hub.get(PATH)).json()["code"] == "not_checked"
    swept(hub)
    assert (await hub.get(PATH)).json()["state"] == "queued"
    assert worker(hub).run_one()
    assert commands == [["check", "alice/reverse-text@0.1.0", "--json", "--sandbox"]]
    found = (await hub.get(PATH)).json()
    assert found["state"] == "done"
    summary = found["summary"]
    assert [summary[name] for name in ("passed", "warned", "failed", "skipped")] == [1, 1, 1, 1]
    assert [one["id"] for one in summary["findings"]] == [
        "rewards.gold",
        "determinism.replay",
        "rewards.noop",
    ]
    assert (found["made_with"]["hub"], found["seconds"]) == (__version__, 1.5)
    page = (await hub.get("/alice/reverse-text")).text
    assert (
        page.index("Recorded by this hub")
        < page.index("1 passed, 1 failed, 1 warning, 1 skipped")
        < page.index("Declared by the author")
    )
    assert "determinism.replay" in page
    assert "&lt;b&gt;" in page
    assert "<dd>1.00 / 0.00 / 0.25</dd>" in page
    assert "Mean reward of each scripted player: correct answer 1.00, empty reply 0.00, begging 0.25" in page


async def test_every_version_is_checked_once_including_older_ones(hub, commands, make_wheel):
    await hub.publish()
    await hub.publish(make_wheel(version="0.2.0"))
    sweep = swept(hub)
    sweep()
    swept(hub)
    await hub.publish(make_wheel(version="0.3.0"))
    sweep()
    work = worker(hub)
    while work.run_one():
        pass
    assert [words[1].rpartition("@")[2] for words in commands] == ["0.1.0", "0.2.0", "0.3.0"]


async def test_the_hubs_own_packages_and_deleted_versions_are_not_checked(hub, commands, make_wheel):
    await hub.publish()
    deleted = await hub.client.delete(
        "/api/v1/environments/alice/reverse-text/versions/0.1.0", headers=hub.auth("alice")
    )
    assert deleted.status_code == 200, deleted.text
    swept(hub)
    assert not worker(hub).run_one()


async def test_a_check_that_cannot_run_reports_why(hub, monkeypatch):
    await hub.publish()
    swept(hub)
    monkeypatch.setattr(ClientProgram, "_answer", lambda *_: {"nothing": 1})
    assert worker(hub).run_one()
    found = (await hub.get(PATH)).json()
    assert (found["state"], found["summary"]) == ("failed", None)
    assert "did not return a report" in found["error"]
    assert "failed: `wander check` did not return a report" in (await hub.get("/alice/reverse-text")).text


async def test_checks_of_a_private_environment_are_private(hub, commands):
    await hub.publish()
    swept(hub)
    worker(hub).run_one()
    path = "/api/v1/environments/alice/reverse-text/visibility"
    assert (await hub.client.put(path, json={"private": True}, headers=hub.auth("alice"))).status_code == 200
    assert (await hub.get(PATH)).status_code in (401, 404)
    assert (await hub.get(PATH, headers=hub.auth("alice"))).status_code == 200


LEARNING = PATH.replace("/check", "/learning")


def learned(reward: float) -> LearningReport:
    curve = [
        LearningPoint(step=step, reward=mean, low=mean - 0.05, high=mean + 0.05)
        for step, mean in ((0, 0.31), (40, reward))
    ]
    return LearningReport(
        schema="wander.learning/1",
        environment="reverse-text",
        shown=reward > 0.5,
        reason="" if reward > 0.5 else "it failed in `/home/hub/secret/x.log`",
        demonstrations="expert",
        demonstrated=0.9,
        parameters=100,
        examples=200,
        curve=curve,
        platform="Linux x86_64 AVX2",
    )


@pytest.mark.parametrize("reward", [0.58, 0.31])
async def test_a_proof_of_learning_is_made_once_and_its_page_draws_the_curve(hub, monkeypatch, reward):
    report, asked = learned(reward), []
    stated = {**report.model_dump(mode="json", by_alias=True), "digest": report.digest}

    def answer(self: ClientProgram, context: Any, words: list[str], *_: str) -> dict[str, Any]:
        asked.append(words)
        return {**ANSWER, "learning": stated} if "--learn" in words else dict(ANSWER)

    monkeypatch.setattr(ClientProgram, "_answer", answer)
    await hub.publish()
    assert (await hub.get(LEARNING)).json()["code"] == "no_learning"
    program = ClientProgram(hub.database, "http://hub", hub.settings.data, sandbox=True, seconds=60)
    queue = TableQueue(hub.database)
    handlers = {
        version_checks.KIND: Checker(hub.database, program),
        version_checks.LEARN: Learner(hub.database, program),
    }
    for _ in range(2):
        VersionSweep(hub.database, queue, list(handlers))()
        while JobWorker(queue, handlers, "checker").run_one():
            pass
    assert [words[:3] for words in asked] == [
        ["check", "alice/reverse-text@0.1.0", "--json"],
        ["check", "alice/reverse-text@0.1.0", "--learn"],
    ]
    found = (await hub.get(LEARNING)).json()
    assert (found["state"], found["digest"]) == ("done", report.digest)
    assert found["report"]["shown"] == (reward > 0.5)
    assert "secret" not in found["report"]["reason"]
    page = (await hub.get("/alice/reverse-text")).text
    assert ("Learnable: 0.31 to 0.58 in 40 steps" if reward > 0.5 else "not shown: it failed in") in page
    assert page.count('class="whisker') == 2
    assert "a correct answer earned 1.00" in page
    assert "secret" not in page


async def test_a_changed_learning_report_is_rejected_and_missing_packages_are_named(hub, monkeypatch):
    stated = {**learned(0.58).model_dump(mode="json", by_alias=True), "digest": "0" * 64}
    missing = {"error": {"code": "missing_extra", "message": "it needs packages", "hint": "run `pip`"}}
    answers = [{"data": {**ANSWER, "learning": stated}}, missing]
    monkeypatch.setattr(ClientProgram, "_execute", lambda *_: answers.pop(0))
    await hub.publish()
    program = ClientProgram(hub.database, "http://hub", hub.settings.data, sandbox=True, seconds=60)
    queue = TableQueue(hub.database)
    VersionSweep(hub.database, queue, [version_checks.LEARN])()
    handlers = {version_checks.LEARN: Learner(hub.database, program)}
    assert JobWorker(queue, handlers, "learner").run_one()
    found = (await hub.get(LEARNING)).json()
    assert (found["state"], found["report"]) == ("failed", None)
    assert "another release" in found["error"]
    context = SimpleNamespace(lease=SimpleNamespace(job_id=1, payload={"version_id": 1}))
    with pytest.raises(JobRefused, match="it needs packages"):
        handlers[version_checks.LEARN](context)
