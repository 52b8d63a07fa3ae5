from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander.train.config import GRPOSettings
from wander.train.correction import GAP, SHARE
from wander.train.records.files import Alert, read_alerts, write_alerts
from wander.train.watch.watch import Rules

SETTINGS = GRPOSettings.model_validate(
    {
        "model": {"path": "tiny"},
        "evaluation": {"every": 1},
        "output": {"keep_best": "eval/won"},
    }
)
BEGUN_WITH: dict[str, float | None] = {"eval/won": 0.5}
SOUND = {"reward": 0.5, "entropy": 1.0, "groups_without_variance": 0.2, "truncated": 0.0, "rollouts": 20}


def steps(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"step": number, **SOUND, **change} for number, change in enumerate(changes, start=1)]


def new_rules() -> Rules:
    return Rules(SETTINGS, lambda: BEGUN_WITH)


def alerts_of(entries: list[dict[str, Any]], rules: Rules | None = None) -> list[Alert]:
    rules = rules or new_rules()
    return [alert for entry in entries for alert in rules.read(entry)[0]]


def told(*changes: dict[str, Any]) -> list[tuple[int, str]]:
    return [(alert.step, alert.rule) for alert in alerts_of(steps(*changes))]


def test_a_healthy_run_raises_no_alert() -> None:
    assert told(*[{}] * 30) == []
    assert alerts_of([{"step": 1, "loss": 0.1}]) == [], "metrics that are absent raise nothing"


def test_a_reward_that_is_not_finite_raises_an_alert_immediately() -> None:
    assert told({}, {"reward": None}) == [(2, "reward_not_finite")]


def test_an_entropy_alert_needs_lasting_low_entropy() -> None:
    low, better = {"entropy": 0.19, "reward": 0.9}, {"reward": 0.9}  # otherwise it is a collapse too
    assert told(*[{}] * 10, *[low] * 9, better, *[low] * 11) == [(30, "entropy_low")]
    assert told(*[low] * 30) == [], "low from the first step on is how the policy is"


@pytest.mark.parametrize(
    ("sections", "distance", "warned"),
    [
        ({"model": {"path": "tiny", "autocast": True}}, 0.1, False),
        ({"model": {"path": "tiny", "autocast": True}}, 0.3, True),
        ({"inference": {"engine": "vllm-server"}}, 0.3, True),
        ({"inference": {"engine": "vllm-server"}, "batch": {"max_staleness": 1}}, 0.3, False),
        ({"sampling": {"top_p": 0.5}}, 0.3, False),
    ],
)
def test_samples_of_other_weights_raise_an_alert(
    sections: dict[str, Any], distance: float, warned: bool
) -> None:
    settings = GRPOSettings.model_validate({"model": {"path": "tiny"}, **sections})
    entries = steps({f"{GAP}/mean": distance, SHARE: 0.9})
    alerts = alerts_of(entries, Rules(settings, dict))
    assert [alert.rule for alert in alerts] == ["logprobs_differ"] * warned
    assert all("0.30 nats on average" in alert.message for alert in alerts)


def test_an_alert_needs_lasting_groups_without_variance() -> None:
    flat = {"groups_without_variance": 0.9}
    assert told(*[flat] * 9, {}, *[flat] * 10) == [(20, "no_variance")]


def test_distillation_learns_from_groups_without_variance() -> None:
    learning = {"algorithm": {"loss": "distill"}, "teacher": {"path": "tiny"}}
    rules = Rules(GRPOSettings.model_validate(SETTINGS.model_dump() | learning), lambda: BEGUN_WITH)
    flat = {"groups_without_variance": 0.9}
    assert alerts_of(steps(*[flat] * 10), rules) == []


def test_an_alert_is_repeated_only_after_a_calm_period() -> None:
    cut = {"truncated": 0.5}
    assert told(cut, {}, cut, cut, {}, cut) == [(1, "truncated")]
    assert told(cut, *[{}] * 10, cut) == [(1, "truncated"), (12, "truncated")]


def test_failures_at_any_boundary_are_a_share_of_the_rollouts() -> None:
    one, two = ({"failed": number, "failed/rubric": number} for number in (1, 2))
    assert told(one, two) == [(2, "failures")]
    (alert,) = alerts_of(steps({"failed": 3, "failed/model": 1, "failed/rubric": 2}))
    assert "model 1, rubric 2" in alert.message


def test_an_unchanged_evaluation_raises_an_alert() -> None:
    same = {"evaluation/own/reward": 0.25}
    assert told(same, {"reward": 0.6}, same, {"reward": 0.9}, same) == [(5, "evaluation_flat")]
    assert told(same, {}, same, {}, same) == [], "nothing moves"
    assert told(same, {"reward": 0.9}, {"evaluation/own/reward": 0.3}, {"reward": 0.9}, same) == []
    (alert,) = alerts_of(steps(same, {"reward": 0.6}, same, {"reward": 0.9}, same))
    assert "evaluation of `own`" in alert.message


def test_an_unchanged_evaluation_is_allowed_before_sampling() -> None:
    done = {"evaluation/own/reward": 1.0}
    assert told(done, {"reward": 0.7}, done, {"reward": 0.9}, done) == [], "greedy play did it before"
    nearly = [{"evaluation/own/reward": value} for value in (0.25, 0.252, 0.25)]
    climbs = [nearly[0], {"reward": 0.6}, nearly[1], {"reward": 0.9}, nearly[2]]
    assert told(*climbs) == [(5, "evaluation_flat")], "a hundredth of what the sampled reward moved"


def test_a_best_checkpoint_at_the_start_raises_one_alert() -> None:
    worse, better = ({"evaluation/eval/won": value} for value in (0.5, 0.6))
    assert told(worse, worse, {}, worse, worse) == [(4, "best_at_start")], "an equal one does not beat it"
    assert told(worse, better, worse, worse, worse) == []
    assert told(worse, {"evaluation/eval/won": None}, worse) == []
    assert told({}, {"steps": 2, **worse}) == [(2, "best_at_start")], "the last evaluation of a short run"
    (alert,) = alerts_of(steps(worse, worse, worse))
    assert "better `eval/won` than the evaluation before the first step" in alert.message


def test_alerts_are_stored_next_to_the_metrics(tmp_path: Path) -> None:
    assert read_alerts(tmp_path) == []
    alerts = alerts_of(steps({"truncated": 0.5}, {"reward": None}))
    write_alerts(tmp_path, alerts)
    assert read_alerts(tmp_path) == alerts
    assert alerts[0].message.startswith(
        "50% of the rollouts were cut short by a limit: `sampling.max_tokens`"
    )
    write_alerts(tmp_path, [])
    assert list(tmp_path.iterdir()) == []


CHANGES = st.fixed_dictionaries(
    {
        "reward": st.none() | st.floats(-1, 1),
        "entropy": st.none() | st.floats(0, 3),
        "groups_without_variance": st.floats(0, 1),
        "truncated": st.floats(0, 1),
        "failed/environment": st.integers(0, 20),
        "rewards/reward/std": st.floats(0, 0.5),
        "evaluation/eval/won": st.none() | st.floats(0, 1),
    }
)


@given(st.lists(CHANGES, max_size=40), st.integers(0, 40))
def test_a_resumed_run_raises_the_same_alerts(changes: list[dict[str, Any]], cut: int) -> None:
    entries = steps(*changes)
    before = alerts_of(entries[:cut])
    resumed = new_rules()
    alerts_of(entries[:cut], resumed)
    assert before + alerts_of(entries[cut:], resumed) == alerts_of(entries)
