"""Posted runs: validated line by line, summarized by the hub, kept once, read back whole."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import inspect, update
from wander.types import Rollout
from wander_hub.identity import HUB
from wander_hub.runs import repository
from wander_hub.runs.models import Run


@pytest.fixture
async def pinned(hub):
    """A published environment: the digest of its wheel."""
    return await hub.publish()


def run_url(manifest) -> str:
    return f"/api/v1/runs/{manifest['run_id']}"


async def test_aggregates_are_recomputed_and_a_forged_summary_is_ignored(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned, reward=[0.0, 0.5, 1.0, 1.0, 0.25, 0.25])
    forged = json.dumps({"reward_mean": 1.0, "rollouts": 6}).encode()
    answer = await hub.post_run(manifest, rollouts, artifacts={"summary.json": forged})
    summary = answer.json()["summary"]
    assert summary["reward_mean"] == pytest.approx((0.25 + 1.0 + 0.25) / 3)
    assert summary["reward_low"] < summary["reward_mean"] < summary["reward_high"]
    assert summary["metrics"]["lcs"]["mean"] == pytest.approx(0.5)
    assert summary["usage"] == {"prompt_tokens": 60, "completion_tokens": 24}
    assert answer.json()["level"] == "complete"
    assert answer.json()["posted_by"] == "alice"
    assert answer.json()["url"] == f"http://hub.test/runs/{manifest['run_id']}"


async def test_the_same_run_again_is_a_200_and_other_content_a_409(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned)
    first = await hub.post_run(manifest, rollouts)
    again = await hub.post_run(manifest, rollouts)
    packed = await hub.post_run(manifest, rollouts, compress=True)
    assert (first.status_code, again.status_code, packed.status_code) == (201, 200, 200)
    assert first.json() == again.json() == packed.json()
    rollouts[0]["reward"] = 0.9
    other = await hub.post_run(manifest, rollouts, user="bob")
    assert (other.status_code, other.json()["code"]) == (409, "run_exists")
    listed = (await hub.get("/api/v1/runs")).json()["data"]
    assert [one["summary"]["reward_mean"] for one in listed] == [0.5]


async def test_lists_leave_the_examples_out_and_read_no_whole_manifest(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned)
    manifest["strata"] = [1] * len(manifest["example_ids"])
    listed = (await hub.post_run(manifest, rollouts)).json()
    assert (listed["manifest"]["example_ids"], listed["manifest"]["strata"]) == ([], [1])
    assert (await hub.get("/api/v1/runs")).json()["data"] == [listed]
    whole = (await hub.get(run_url(manifest))).json()
    assert whole == listed | {"manifest": manifest}, "as it was posted"
    with hub.database.read(HUB) as session:
        (run,) = session.scalars(repository.newest_first(repository.visible(session), limit=1))
        assert "manifest" in inspect(run).unloaded, "a list reads no whole manifest"
        assert run.brief_manifest.example_ids == []
    with hub.database.write(HUB) as session:
        session.execute(update(Run).values(manifest="not read"))
    assert (await hub.get("/api/v1/runs")).json()["data"] == [listed]
    for page in ("/", "/runs", "/alice/reverse-text"):
        assert (await hub.get(page, headers={"Accept": "text/html"})).status_code == 200, page


async def test_missing_and_failed_rollouts_make_it_claimed(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned, reward=[1.0, 1.0, None, 1.0, 1.0, 1.0])
    answer = (await hub.post_run(manifest, rollouts[:-1])).json()
    assert answer["level"] == "claimed"
    assert answer["level_reason"] == "1 of 6 rollouts missing and 1 failed"
    assert answer["summary"]["failures"] == {"model": 1}
    assert answer["summary"]["reward_mean"] == 1.0


async def test_a_retry_replaces_a_failed_rollout_only(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned)
    failed = run_of(pinned, reward=[None] * 6)[1]
    answer = await hub.post_run(manifest, [failed[2], *rollouts])
    assert answer.json()["level"] == "complete"
    manifest["run_id"] += "B"
    answer = await hub.post_run(manifest, [*rollouts, rollouts[3]])
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_rollouts")
    assert answer.json()["errors"] == [{"line": 7, "msg": "it repeats rollout 1 of `1`"}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"example_id": "99"}, "no example"),
        ({"index": 2}, "outside of 0..1"),
        ({"index": -1}, "outside of 0..1"),
        ({"reward": None}, "finite reward or a failure"),
        ({"reward": float("nan")}, "not JSON"),
        ({"metrics": {"lcs": float("inf")}}, "not JSON"),
        ({"info": {"seen": [{"value": float("nan")}]}}, "not JSON"),
        ({"prompt": [{"role": "user", "content": "", "weight": float("-inf")}]}, "not JSON"),
        ({"turns": [{"message": {"content": float("nan")}, "context_messages": 1}]}, "not JSON"),
        ({"turns": [{"message": {}, "context_messages": 1, "model_seconds": 1e999}]}, "not JSON"),
        ({"reward": "high"}, "reward"),
        ({"rewards": 1.0}, "rewards"),
        ({"usage": {"completion_tokens": 2**40}}, "out of range"),
        ({"completion": "text"}, "completion"),
        ({"failure": {"boundary": "model", "type": "X", "message": ""}}, "must not have a reward"),
        ({"failure": {"boundary": "elsewhere", "type": "X", "message": ""}}, "failure.boundary"),
    ],
)
async def test_a_bad_rollout_is_rejected_with_its_line(hub, pinned, run_of, change, words):
    manifest, rollouts = run_of(pinned)
    rollouts[4] |= change
    answer = await hub.post_run(manifest, rollouts)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_rollouts")
    assert "line 5" in answer.json()["detail"]
    assert words in answer.json()["detail"]
    assert (await hub.get(run_url(manifest))).status_code == 404


@pytest.mark.parametrize("body", [b"{", b"[]\n", b'"text"\n', b"\xff\xfe\n", b"\x28\xb5\x2f\xfd broken"])
async def test_rollouts_that_are_not_json_lines_are_rejected(hub, pinned, run_of, body):
    manifest, _ = run_of(pinned)
    answer = await hub.post_run(manifest, body)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_rollouts")


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"example_ids": ["0", "0", "1"]}, 422, "bad_manifest"),
        ({"example_ids": []}, 422, "bad_manifest"),
        ({"example_ids": ["a\x00b"]}, 422, "bad_manifest"),
        ({"rollouts_per_example": 0}, 422, "bad_manifest"),
        ({"rollouts_per_example": 10**9}, 422, "bad_manifest"),
        ({"run_id": "../../etc"}, 422, "bad_manifest"),
        ({"run_id": "short"}, 422, "bad_manifest"),
        ({"task_set_sha256": "x"}, 422, "bad_manifest"),
        ({"schema": "wander.run/9"}, 422, "bad_manifest"),
        ({"summary": {}}, 422, "bad_manifest"),
        ({"model": {"name": "\x1b[31m", "kind": "X"}}, 422, "bad_manifest"),
        ({"model": {"name": "", "kind": "X"}}, 422, "bad_manifest"),
        ({"players": {"O": {"name": "m", "kind": "X"}}}, 422, "bad_manifest"),
        ({"started_at": "yesterday"}, 422, "bad_manifest"),
        ({"started_at": "9000-01-01T00:00:00Z"}, 422, "bad_manifest"),
        ({"spending": {"prices": {"prompt": float("inf"), "completion": 1.0}}}, 422, "bad_manifest"),
        ({"sampling": {"min_p": float("nan")}}, 422, "bad_manifest"),
        ({"training": {"learning_rate": [float("inf")]}}, 422, "bad_manifest"),
    ],
)
async def test_bad_manifest(hub, pinned, run_of, change, status, code):
    manifest, rollouts = run_of(pinned)
    answer = await hub.post_run(manifest | change, rollouts)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


@pytest.mark.parametrize(
    ("pin", "status", "code"),
    [
        ({"owner": None}, 422, "local_environment"),
        ({"version": None}, 422, "local_environment"),
        ({"name": "revers-text"}, 422, "environment_not_found"),
        ({"owner": "bob"}, 422, "environment_not_found"),
        ({"version": "9.9"}, 422, "version_not_found"),
        ({"wheel_sha256": "0" * 64}, 409, "wheel_mismatch"),
    ],
)
async def test_a_pinned_wheel_must_be_one_of_this_hub(hub, pinned, run_of, pin, status, code):
    manifest, rollouts = run_of(pinned)
    manifest["environment"] |= pin
    answer = await hub.post_run(manifest, rollouts)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["hint"]


async def test_a_too_large_number_is_rejected(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned)
    body = b"".join(json.dumps(one).encode() + b"\n" for one in rollouts)
    large = body.replace(b'"seconds": 0.5', b'"seconds": 0.5, "info": {"score": 1e999}', 1)
    assert large != body
    answer = await hub.post_run(manifest, large)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_rollouts")


async def test_without_a_wheel_digest_it_is_only_claimed(hub, pinned, run_of):
    manifest, rollouts = run_of(None)
    answer = (await hub.post_run(manifest, rollouts)).json()
    assert answer["level"] == "claimed"
    assert "wheel" in answer["level_reason"]


async def test_a_form_must_have_all_parts(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned)
    no_rollouts = await hub.post_run(manifest, None)
    assert (no_rollouts.status_code, no_rollouts.json()["code"]) == (400, "bad_form")
    headers = hub.auth()
    empty = await hub.client.post("/api/v1/runs", files={"other": ("x", b"")}, headers=headers)
    assert (empty.status_code, empty.json()["code"]) == (400, "bad_form")
    assert (await hub.post_run(manifest, rollouts, user=None)).status_code == 401
    for name in ("../evil.png", "evil.html", "evil", ".hidden.png", "NUL.png", "com\u00b9.json"):
        answer = await hub.post_run(manifest, rollouts, artifacts={name: b""})
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_artifact")
    answer = await hub.post_run(manifest, rollouts, artifacts={"curve.png": b"", "Curve.PNG": b""})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_artifact")


async def test_rollouts_are_paged_and_each_opens_whole(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned, examples=40, per_example=5)
    for number, line in enumerate(rollouts):
        line["completion"][0]["content"] = f"{number} " + "long text " * 400
        line["usage"] = line["turns"][0]["usage"] = {"prompt_tokens": 10, "completion_tokens": 1000}
    assert (await hub.post_run(manifest, rollouts[::-1], compress=True)).status_code == 201
    page = (await hub.get(f"{run_url(manifest)}/rollouts", params={"offset": 50, "limit": 20})).json()
    assert (page["total"], page["offset"], len(page["data"])) == (200, 50, 20)
    first = page["data"][0]
    assert (first["number"], first["example_id"], first["index"], first["reward"]) == (50, "10", 0, 0.5)
    assert first["preview"].startswith("50 long text")
    for number in (0, 50, 137, 199):
        answer = await hub.get(f"{run_url(manifest)}/rollouts/{number}")
        assert answer.json()["completion"] == rollouts[number]["completion"]
    lines = (await hub.get(f"{run_url(manifest)}/rollouts.jsonl")).text.splitlines()
    assert [Rollout.model_validate_json(line) for line in lines] == [
        Rollout.model_validate(one) for one in rollouts
    ]
    missing = await hub.get(f"{run_url(manifest)}/rollouts/200")
    assert (missing.status_code, missing.json()["code"]) == (404, "rollout_not_found")


async def test_artifacts_come_back_and_cannot_act(hub, pinned, run_of):
    manifest, _ = run_of(pinned, reward=[], examples=0, kind="training")
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    answer = await hub.post_run(manifest, None, artifacts={"curve.svg": svg, "metrics.jsonl": b"{}\n"})
    assert answer.status_code == 201, answer.text
    assert [one["name"] for one in answer.json()["artifacts"]] == ["curve.svg", "metrics.jsonl"]
    got = await hub.get(f"{run_url(manifest)}/artifacts/curve.svg")
    assert (got.content, got.headers["content-type"]) == (svg, "image/svg+xml")
    assert got.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert answer.json()["level"] == "claimed"
    assert (await hub.get(f"{run_url(manifest)}/rollouts.jsonl")).content == b""
    assert (await hub.get(f"{run_url(manifest)}/rollouts")).json()["total"] == 0
    assert (await hub.get(f"{run_url(manifest)}/rollouts/0")).status_code == 404
    missing = await hub.get(f"{run_url(manifest)}/artifacts/curves.svg")
    assert (missing.status_code, missing.json()["hint"]) == (404, "did you mean `curve.svg`?")


async def test_runs_are_listed_newest_first_by_environment_and_model(hub, pinned, run_of, make_wheel):
    await hub.publish(make_wheel(name="other"))
    for number in range(5):
        century = "7Z" if number == 0 else "01"  # the first is of a machine whose clock is far ahead
        manifest, rollouts = run_of(pinned, run_id=f"{century}RUN{number:021d}", model=f"model {number % 2}")
        manifest["started_at"] = "2190-01-01T00:00:00Z" if number == 0 else manifest["started_at"]
        assert (await hub.post_run(manifest, rollouts)).status_code == 201
    seen: list[str] = []
    cursor = None
    while True:
        params = {"environment": "alice/reverse-text", "limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await hub.get("/api/v1/runs", params=params)).json()
        seen += [one["run_id"][-1] for one in page["data"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == ["4", "3", "2", "1", "0"]
    named = (await hub.get("/api/v1/runs", params={"model": "model 1"})).json()["data"]
    assert [one["run_id"][-1] for one in named] == ["3", "1"]
    other = (await hub.get("/api/v1/runs", params={"environment": "alice/other"})).json()["data"]
    assert other == []
    assert (await hub.get("/api/v1/runs", params={"environment": "alice/none"})).status_code == 404
    assert (await hub.get("/api/v1/runs", params={"environment": "alice"})).status_code == 422
    bad = await hub.get("/api/v1/runs", params={"cursor": "nonsense"})
    assert (bad.status_code, bad.json()["code"]) == (422, "bad_cursor")


async def test_a_run_pins_the_name_in_any_spelling(hub, pinned, run_of):
    manifest, rollouts = run_of(pinned, name="Reverse_Text")
    assert (await hub.post_run(manifest, rollouts)).status_code == 201
    listed = await hub.get("/api/v1/runs", params={"environment": "alice/reverse_text"})
    assert len(listed.json()["data"]) == 1


@pytest.mark.parametrize(
    ("players", "fault"),
    [
        ({"X": {"name": "m", "kind": "Some"}}, "lists `X`, who is not another player"),
        ({"O": {"name": "scripted:own:optimal", "kind": "Some"}}, "by its name and by its kind"),
        ({"O": {"name": "m", "kind": "script"}}, "by its name and by its kind"),
        ({"O": {"name": "", "kind": "Some"}}, "players.O.name must be"),
    ],
)
async def test_impossible_players_of_a_run_are_rejected(hub, pinned, run_of, players, fault):
    manifest, rollouts = run_of(pinned)
    manifest["environment"]["info"]["players"] = ["X", "O"]
    answer = await hub.post_run(manifest | {"players": players}, rollouts)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_manifest")
    assert fault in answer.json()["detail"]


async def test_in_training_somebody_else_may_play_the_first_player(hub, pinned, run_of):
    manifest, _ = run_of(pinned, reward=[], examples=0, kind="training")
    manifest["environment"]["info"]["players"] = ["X", "O"]
    players = {"X": {"name": "earlier", "kind": "OtherPolicy"}}
    answer = await hub.post_run(manifest | {"players": players}, None)
    assert answer.status_code == 201, answer.text
