"""The metrics of a step: rewards by function, player and environment, lengths, failures, and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from wander.train.rollouts.sampler import has_signal
from wander.train.rollouts.step import Group, PlayedStep
from wander.types import Rollout


def rollout_metrics(step: PlayedStep, labels: Sequence[str], *, refills: bool) -> dict[str, Any]:
    """Return the rewards, metrics, lengths, failures and times of a step.

    Means cover all groups that were played, including replaced groups, so they describe the policy and not
    the selection that it learns from. With several environments, each also has separate metrics.
    """
    scored = _pick_scored(step.played)
    rollouts = sum(len(call.rollouts) for call in step.calls)
    tokens = sum(call.sampled_tokens for call in step.calls)
    entropy = sum(call.entropy * call.sampled_tokens for call in step.calls)
    after_refills = {
        "groups_played": len(step.played),
        "groups_refilled": step.refilled,
        "groups_without_variance_after": (step.first_idle - step.refilled) / max(1, len(step.groups)),
    }
    failed = Counter(
        rollout.failure.boundary
        for call in step.calls
        for rollout in call.rollouts
        if rollout.failure is not None
    )
    return {
        **_rewards(scored),
        **means_by_player(scored),
        **(_by_environment(step.played, labels) if len(labels) > 1 else {}),
        "turns": mean([len(rollout.turns) for rollout in scored]),
        "sequences": mean(
            [len(row.sequences) for group in step.played for row in group.rows if row.reward is not None]
        ),
        "tokens": tokens / max(1, rollouts),
        "entropy": entropy / tokens if tokens else 0.0,
        "rollouts": rollouts,
        "groups_without_variance": step.first_idle / max(1, len(step.groups)),
        **(after_refills if refills else {}),
        "groups_left_out": step.left_out,
        "truncated": mean([float(rollout.truncated) for rollout in scored]),
        "failed": failed.total(),
        **{f"failed/{boundary}": count for boundary, count in sorted(failed.items())},
        "retried": sum(call.retried for call in step.calls),
        **_seconds(step, scored),
    }


def _rewards(scored: Sequence[Rollout]) -> dict[str, float]:
    names = sorted({name for rollout in scored for name in rollout.metrics})
    return {
        "reward": mean([rollout.reward for rollout in scored]),
        **{f"rewards/{name}": mean([r.metrics[name] for r in scored if name in r.metrics]) for name in names},
    }


def _by_environment(played: Sequence[Group], labels: Sequence[str]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for number, label in enumerate(labels):
        groups = [group for group in played if group.pick.environment == number]
        if not groups:
            continue
        own = _rewards(_pick_scored(groups)) | {
            "groups": len(groups),
            "groups_without_variance": mean([float(not has_signal(group.scored)) for group in groups]),
        }
        metrics |= {f"environments/{label}/{name}": value for name, value in own.items()}
    return metrics


def means_by_player(scored: Sequence[Rollout]) -> dict[str, float]:
    """Return the means of each player over scored rollouts: reward, turns and the other metrics.

    Empty if the environment has no players.
    """
    means: dict[str, float] = {}
    for player in dict.fromkeys(name for rollout in scored for name in rollout.rewards):
        own = [rollout for rollout in scored if player in rollout.rewards]
        turns = [turn.player == player for rollout in own for turn in rollout.turns]
        means[f"reward/{player}"] = sum(rollout.rewards[player] for rollout in own) / len(own)
        means[f"turns/{player}"] = sum(turns) / len(own)
        own_metrics = [
            rollout.metrics
            if player == next(iter(rollout.rewards))
            else rollout.player_metrics.get(player, {})
            for rollout in own
        ]
        for name in sorted({name for metrics in own_metrics for name in metrics}):
            values = [metrics[name] for metrics in own_metrics if name in metrics]
            means[f"{name}/{player}"] = sum(values) / len(values)
    return means


def _seconds(step: PlayedStep, scored: Sequence[Rollout]) -> dict[str, float]:
    """Return the times of a step's parts, and the tokens that the model sampled per second of generation.

    Generation is the time during which the model computed. Environments may work during this time at no cost.
    During the rest of the time, the step waited for environments' code and processes, the chat template and
    tokenization of their messages, scoring, and the slowest rollout. This time is divided between environment
    and scoring in proportion to the rollouts' own times.
    """
    seconds = sum(call.seconds for call in step.calls)
    generation = sum(call.model_seconds for call in step.calls)
    rest = max(0.0, seconds - generation)
    scoring = sum(rollout.scoring_seconds for rollout in scored)
    environment = sum(turn.environment_seconds for rollout in scored for turn in rollout.turns)
    scoring = rest * scoring / (scoring + environment) if scoring else 0.0
    tokens = sum(call.sampled_tokens for call in step.calls)
    return {
        "tokens_per_second": tokens / generation if generation else 0.0,
        "seconds/rollouts": seconds,
        "seconds/generation": generation,
        "seconds/environment": rest - scoring,
        "seconds/scoring": scoring,
    }


def _pick_scored(groups: Sequence[Group]) -> list[Rollout]:
    return [
        rollout
        for group in groups
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
        if reward is not None
    ]


def mean(values: Sequence[float | None]) -> float:
    """Return the mean of the values that are not None; NaN without values."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")
