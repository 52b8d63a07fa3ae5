"""The page of a training run: curves, alerts, evaluations, time, samples; hostile files do no harm."""

from __future__ import annotations

import json
import tomllib
from html.parser import HTMLParser
from typing import Any

import pytest
from wander.wire.reproduction import toml_lines
from wander_hub.web.run import training as training_page

HTML = {"Accept": "text/html,application/xhtml+xml"}
HOSTILE = "<script>alert(1)</script>\u202e"
TRAINING = {
    "model": {"path": 'models/"tiny"', "device": None},
    "environment": {"arguments": {"max_random_move_prob": 0.7, "odd name": [1, "a"]}},
    "schedule": {"steps": 30, "learning_rate": 1e-5},
    "environments": [{"weight": 2.0, "name": None}],
    "notes": None,
}


class Text(HTMLParser):
    """The words of a page, and how its tags nest."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = tag == "script" and str(dict(attrs)["src"]).startswith("http://hub.test/static/")
        self.tags.update([] if own else [tag])
        self.links += [value for name, value in attrs if name == "href" and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(answer: Any) -> Text:
    assert answer.status_code == 200, answer.text
    text = Text()
    text.feed(answer.text)
    assert text.open == []
    return text


def said(text: Text) -> str:
    return " ".join("".join(text.words).split())


def sample(example: str, step: int, reward: float | None, reply: str) -> dict[str, Any]:
    failed = {"boundary": "environment", "type": "Error", "message": "broke"} if reward is None else None
    return {
        "example_id": example,
        "index": 0,
        "seed": 1,
        "prompt": [{"role": "user", "content": "Your move.\nX 1 2"}],
        "completion": [{"role": "assistant", "content": reply}],
        "reward": reward,
        "failure": failed,
        "step": step,
    }


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def files() -> dict[str, bytes]:
    times = {
        "seconds/generation": 6.0,
        "seconds/environment": 1.0,
        "seconds/update": 3.0,
        "seconds/step": 10.0,
    }
    steps = [
        {"step": step, "reward": step / 30, "rewards/won": 0.5, "failed": 0, "rollouts": 32, **times}
        | {"rewards/reward/mean": step / 30 + 1e-9, "rewards/reward/std": 0.25, "reward_std": 0.5}
        for step in range(1, 31)
    ]
    return {
        "metrics.jsonl": lines(*steps),
        "alerts.jsonl": lines(
            {"step": 12, "rule": "entropy_low", "message": f"entropy is low {HOSTILE}"}, [1], {"step": "x"}
        ),
        "evaluations.jsonl": lines(
            {"step": 0, "cell": "optimal", "reward": 0.2, "interval": [0.1, 0.3], "examples": 50},
            {"step": 30, "cell": "optimal", "reward": 0.8, "interval": [0.7, 0.9], "examples": 50},
            {"step": 30, "cell": HOSTILE, "reward": 1e999, "interval": "x"},
            {"step": 30, "cell": HOSTILE, "reward": 0.5, "interval": None},
        ),
        "samples.jsonl": lines(
            sample("first", 0, 0.0, "I do not know"),
            sample("second", 0, None, "?"),
            sample("first", 30, 1.0, f"Move 5 {HOSTILE}"),
            sample("second", 30, 0.5, "Move 1"),
            {"example_id": "no rollout"},
        ),
    }


@pytest.fixture
async def run_id(hub, run_of) -> str:
    """A posted training run."""
    manifest, rollouts = run_of(await hub.publish(), kind="training", training=TRAINING)
    manifest["environment"]["info"]["view"] = {"columns": 3, "cells": {"X": "✕", "1": "", "2": ""}}
    answer = await hub.post_run(manifest, rollouts, artifacts=files())
    assert answer.status_code == 201, answer.text
    return str(manifest["run_id"])


async def test_the_page_shows_how_it_went(hub, run_id):
    text = read(await hub.get(f"/runs/{run_id}", headers=HTML))
    words = said(text)
    assert "1 alert step 12: entropy is low <script>" in words
    assert "script" not in text.tags
    assert "30 steps in 5.0 min" in words
    assert "first → last step0.0333 → 1" in words
    assert "stored rollouts" in words
    assert "missing" not in words, "training keeps few of its rollouts, and misses none"
    assert "generation 60.0%" in words
    assert "update 30.0%" in words
    assert words.index("reward0.0333 → 1") < words.index("rewards/won0.5 → 0.5")
    assert "30optimal0.800 [0.700, 0.900]50" in words
    page = (await hub.get(f"/runs/{run_id}", headers=HTML)).text
    assert 'data-points="1,0.03333 2,0.06667' in page, "what is drawn is there for the script"
    assert "failed/rollouts0 → 0" in words
    assert "rewards/reward/mean" not in words, "no curve is drawn twice"
    assert "rewards/reward/std" in words, "what is said of the same thing otherwise is shown"
    alerts, curves = page.count('class="alert-mark" data-step="12"'), page.count("data-points=")
    assert alerts == curves == 10, "an alert stands on each curve"
    assert "/static/curves.js" in page
    assert "\u202e" not in words, "characters that turn a line around are named, not acted upon"
    assert "wander train alice/reverse-text@" in words


async def test_each_curve_and_the_evaluations_are_tables_too(hub, run_id):
    words = said(read(await hub.get(f"/runs/{run_id}", headers=HTML)))
    assert words.count("as a table") == 11, "ten curves and the evaluations"
    assert "as a tableStepreward 10.033330.1" in words


async def test_samples_are_read_by_step(hub, run_id):
    last = read(await hub.get(f"/runs/{run_id}", headers=HTML))
    assert "?step=0#samples" in last.links
    assert "After 30 steps" in said(last)
    assert "Move 1" in said(last)
    assert "I do not know" not in said(last)
    assert "✕" in said(last), "a state is drawn in samples too"
    first = said(read(await hub.get(f"/runs/{run_id}?step=0", headers=HTML)))
    assert "After 0 steps" in first
    assert "I do not know" in first
    assert "! environment" in first
    between = said(read(await hub.get(f"/runs/{run_id}?step=7", headers=HTML)))
    assert "After 30 steps" in between, "a step without samples shows the last"
    assert (await hub.get(f"/runs/{run_id}?step=-1", headers=HTML)).status_code == 422


async def test_an_environment_page_lists_its_training_runs(hub, run_of, run_id):
    page = read(await hub.get("/alice/reverse-text", headers=HTML))
    words = said(page)
    assert "Training runs" in words
    assert page.links.count(f"/runs/{run_id}") == 1, "each run is listed once"
    assert "Latest evaluations" not in words


async def test_an_environment_without_training_runs_has_no_training_section(hub, run_of):
    manifest, rollouts = run_of(await hub.publish())
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    assert "Training runs" not in said(read(await hub.get("/alice/reverse-text", headers=HTML)))


async def post_privately(hub, manifest, rollouts) -> str:
    answer = await hub.client.post(
        "/api/v1/runs",
        files=[
            ("manifest", ("run.json", json.dumps(manifest).encode())),
            ("rollouts", ("rollouts.jsonl", lines(*rollouts))),
        ],
        data={"private": "true"},
        headers=hub.auth("alice"),
    )
    assert answer.status_code == 201, answer.text
    return answer.json()["run_id"]


async def test_a_private_training_run_is_listed_for_nobody_else(hub, run_of):
    await post_privately(hub, *run_of(await hub.publish(), kind="training", training=TRAINING))
    assert "Training runs" not in said(read(await hub.get("/alice/reverse-text", headers=HTML)))


async def test_files_that_hold_nonsense_are_passed_over(hub, run_of):
    manifest, rollouts = run_of(await hub.publish(), kind="training", training={"a": {"b": {"c": [{}]}}})
    nonsense = dict.fromkeys(files(), b'\xff\x00[[[\n{"step": 1e400}\n{"step": null, "reward": "x"}\n12\n')
    assert (await hub.post_run(manifest, rollouts, artifacts=nonsense)).status_code == 201
    words = said(read(await hub.get(f"/runs/{manifest['run_id']}", headers=HTML)))
    assert "The same examples" not in words
    assert "Evaluations during training" not in words


async def several(hub, run_of) -> list[str]:
    """Post a training run, another with the weights that it made, and an evaluation."""
    sha256, weights = await hub.publish(), "ab" * 32
    warm_up = files() | {"checkpoints.jsonl": lines({"step": 30, "weights_sha256": weights})}
    changed = TRAINING | {"schedule": {"steps": 30, "learning_rate": 3e-5, HOSTILE: HOSTILE}}
    change = {"field": "reproduction.device", "before": "cpu", "after": HOSTILE, "step": 20}
    made = []
    for number, (training, artifacts) in enumerate(((TRAINING, warm_up), (changed, files()), (None, {}))):
        kind = "evaluation" if training is None else "training"
        run = f"01JTRAINED{number}000000000000000"
        manifest, rollouts = run_of(sha256, run_id=run, kind=kind, training=training)
        if number:
            manifest["model"]["weights_sha256"] = weights
        if number == 1:
            manifest["reproduction"] = reproduction(change | {"at": "2026-01-01T00:00:00Z"})
        answer = await hub.post_run(manifest, rollouts, artifacts=artifacts)
        assert answer.status_code == 201, answer.text
        made.append(run)
    return made


def reproduction(change: dict[str, Any]) -> dict[str, Any]:
    return {
        "mode": "fast",
        "reason": "asked for",
        "device": "cpu",
        "processes": 1,
        "threads": 1,
        "hardware": {"cpu": "A Processor", "cores": 4},
        "trainer_sha256": "0" * 64,
        "allowed": [change],
    }


async def test_training_runs_lie_over_each_other_and_end_to_end(hub, run_of, monkeypatch):
    first, second, evaluation = await several(hub, run_of)
    words = said(read(await hub.get(f"/runs/{second}", headers=HTML)))
    assert "joined curves" in words
    answer = await hub.get(f"/runs/compare?run={first}&run={second}", headers=HTML)
    page, words = answer.text, said(read(answer))
    curves = [page.count(f'<polyline class="curve series-{one}"') for one in (0, 1)]
    assert curves == [10, 10]
    assert "schedule.learning_rate1e-053e-05" in words
    assert "reproduction.device" in words
    assert 'class="phase-mark" data-step="20"' in page
    assert "1: optimal 0.800" in words
    assert 'data-points="1,0.03333' in page
    joined = (await hub.get(f"/runs/compare?run={first}&run={second}&joined=true", headers=HTML)).text
    assert 'class="phase-mark" data-step="30"' in joined
    assert 'class="phase-mark" data-step="50"' in joined
    assert ";31,0.03333 " in joined
    for run in (first, second):
        mixed = await hub.get(f"/runs/compare?run={run}&run={evaluation}", headers=HTML)
        assert mixed.status_code == 422
    made = said(read(await hub.get(f"/runs/{first}", headers=HTML)))
    assert "No checkpoint of this run is on this hub" in made
    assert "Continued as tiny from step 30 (curves)" in made
    manifest, rollouts = run_of(await hub.publish(), run_id="01JTRAINED9000000000000000", kind="training")
    manifest["model"] |= {"name": "secret", "weights_sha256": "ab" * 32}
    private = await post_privately(hub, manifest | {"training": TRAINING}, rollouts)
    for headers, later in (({}, [second]), (hub.auth(), [second, private])):
        links = (await hub.client.get(f"/api/v1/runs/{first}/links", headers=headers)).json()
        assert sorted((one["run_id"], one["step"]) for one in links["continued_by"]) == [
            (one, 30) for one in later
        ]
    assert "secret" not in said(read(await hub.get(f"/runs/{first}", headers=HTML)))
    monkeypatch.setattr(training_page, "read_metrics", None)
    again = await hub.get(f"/runs/compare?run={first}&run={second}", headers=HTML)
    assert (again.status_code, again.text) == (200, page), "a file of metrics is read once"
    assert (await hub.get(f"/runs/{first}", headers=HTML)).status_code == 200, "also for one run alone"
    gone = await hub.client.delete(f"/api/v1/runs/{second}", params={"reason": "x"}, headers=hub.auth())
    assert gone.status_code == 200
    assert (await hub.get(f"/api/v1/runs/{first}/links")).json()["continued_by"] == []


def test_settings_are_written_as_toml_that_reads_back():
    read_back = tomllib.loads("\n".join(toml_lines(TRAINING)))
    assert read_back == {
        "model": {"path": 'models/"tiny"'},
        "environment": {"arguments": {"max_random_move_prob": 0.7, "odd name": [1, "a"]}},
        "schedule": {"steps": 30, "learning_rate": 1e-5},
        "environments": [{"weight": 2.0}],
    }
