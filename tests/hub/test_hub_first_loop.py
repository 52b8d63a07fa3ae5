"""Publish, list, install files, post, rank: the whole way once."""

from __future__ import annotations

import hashlib

from wander.types import Rollout
from wander.wire import EnvironmentDetail, EnvironmentPage, Leaderboard, RolloutPage, RunDetail
from wander.wire.changes import Whoami


async def test_an_environment_is_published_and_a_run_is_posted_and_ranked(hub, wheel_spec, run_of):
    body = wheel_spec.build()
    answer = await hub.upload(body, wheel_spec.wheel_name)
    assert answer.status_code == 200
    assert answer.headers["x-wander-upload"] == "created"
    page = EnvironmentPage.model_validate_json((await hub.get("/api/v1/environments")).content)
    assert [(one.owner, one.name, one.latest_version) for one in page.data] == [
        ("alice", "reverse-text", "0.1.0")
    ]

    manifest, rollouts = run_of(hashlib.sha256(body).hexdigest(), reward=0.5)
    posted = await hub.post_run(manifest, rollouts)
    assert posted.status_code == 201, posted.text
    run = RunDetail.model_validate_json(posted.content)
    assert run.level == "complete"
    assert run.summary.reward_mean == 0.5

    board = Leaderboard.model_validate_json(
        (await hub.get("/api/v1/environments/alice/reverse-text/leaderboard")).content
    )
    assert [(row.run_id, row.reward_mean) for row in board.rows] == [(run.run_id, 0.5)]
    rows = RolloutPage.model_validate_json((await hub.get(f"/api/v1/runs/{run.run_id}/rollouts")).content)
    assert rows.total == len(rollouts)
    whole = Rollout.model_validate_json((await hub.get(f"/api/v1/runs/{run.run_id}/rollouts/5")).content)
    assert whole == Rollout.model_validate(rollouts[5])
    detail = EnvironmentDetail.model_validate_json(
        (await hub.get("/api/v1/environments/alice/reverse-text")).content
    )
    assert (detail.runs, detail.best_model, detail.best_reward) == (1, "tiny", 0.5)


async def test_whoami_returns_the_user(hub):
    answer = Whoami.model_validate_json((await hub.get("/api/v1/whoami", headers=hub.auth())).content)
    assert (answer.user, answer.admin, answer.owners) == ("alice", False, ["alice"])
    assert answer.token.prefix in hub.tokens["alice"]
    assert (await hub.get("/api/v1/whoami")).json()["code"] == "token_required"


async def test_the_health_route_answers(hub):
    answer = await hub.get("/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
