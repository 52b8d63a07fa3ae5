"""Rollouts that stand twice in a posted run: played again as a group, where rewards compare a group."""

from __future__ import annotations


async def test_a_group_that_failed_may_be_repeated_as_often_as_it_failed(hub, run_of):
    manifest, good = run_of(await hub.publish())
    failed = run_of("0" * 64, reward=[None] * 6)[1]
    manifest["environment"]["info"]["group_rewards"] = True
    first, second = good[:2]  # the two rollouts of one example
    assert first["example_id"] == second["example_id"]
    answer = await hub.post_run(manifest, [first, failed[1], *good])
    assert answer.status_code == 201, answer.text
    assert answer.json()["level"] == "complete"
    manifest["run_id"] = manifest["run_id"][:-1] + "z"
    answer = await hub.post_run(manifest, [first, failed[1], *good, first])
    assert answer.json()["errors"] == [{"line": 9, "msg": f"it repeats rollout 0 of `{first['example_id']}`"}]
    manifest["environment"]["info"]["group_rewards"] = False
    answer = await hub.post_run(manifest, [first, failed[1], *good])
    assert answer.json()["errors"] == [{"line": 3, "msg": f"it repeats rollout 0 of `{first['example_id']}`"}]
