"""Checks of the rewards that players of known quality earn."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from wander.checks.records import PlayRecord, ProbeResult
from wander.checks.report import CheckResult, result
from wander.types import EnvironmentInfo

TOLERANCE = 1e-9

LOW_PLAYERS = {
    "rewards.empty": ("empty",),
    "rewards.noop": ("noop",),
    "rewards.injection": ("demand", "list"),
}
"""Which players each check looks at."""


def reward_findings(first: ProbeResult) -> Iterator[CheckResult]:
    """Judge weights, bounds, and what every player earned."""
    assert first.info is not None
    counted = [each.name for each in first.info.reward_functions if each.weight]
    if not counted:
        yield result("rewards.weights", "fail", "no reward function has a weight other than 0")
    else:
        yield result("rewards.weights", "pass", ", ".join(f"`{name}`" for name in counted))
    scored = [play for play in first.plays if play.rollout.reward is not None]
    if not scored:
        reason = "no rollout was scored" + (", since its judge is not asked here" if first.has_judge else "")
        for check in ("rewards.bounds", "rewards.gold", *LOW_PLAYERS):
            yield result(check, "skip", reason)
        return
    low, high = reward_bounds(first.info, first.bounds)
    yield _within(scored, low, high)
    if low == high:
        for check in ("rewards.gold", *LOW_PLAYERS):
            yield result(check, "skip", f"every reward is {low:g} by its bounds")
        return
    gold = [play for play in scored if play.player == "gold"]
    yield _high(gold, low, high)
    top = max(fmean(_rewards(gold)), (low + high) / 2) if gold else high
    for check, players in LOW_PLAYERS.items():
        yield _low(check, [play for play in scored if play.player in players], low, top)


def reward_bounds(info: EnvironmentInfo, declared: tuple[float, float] | None) -> tuple[float, float]:
    """Return the lowest and highest reward: as declared, else by the weights of functions from 0 to 1."""
    if declared is not None:
        return declared
    weights = [each.weight for each in info.reward_functions]
    return sum(min(0.0, weight) for weight in weights), sum(max(0.0, weight) for weight in weights)


def _rewards(plays: list[PlayRecord]) -> list[float]:
    return [play.rollout.reward for play in plays if play.rollout.reward is not None]


def _within(scored: list[PlayRecord], low: float, high: float) -> CheckResult:
    for play in scored:
        reward = play.rollout.reward
        assert reward is not None
        if not low - TOLERANCE <= reward <= high + TOLERANCE:
            said = f"player `{play.player}` earned {reward:g}, outside {low:g} to {high:g}"
            return result("rewards.bounds", "fail", said, example_id=play.rollout.example_id)
    return result("rewards.bounds", "pass", f"{low:g} to {high:g}")


def _high(gold: list[PlayRecord], low: float, high: float) -> CheckResult:
    """A right player earns at least the middle of the bounds, on average over the examples."""
    if not gold:
        return result("rewards.gold", "skip", "the environment gives no right completion")
    mean = fmean(_rewards(gold))
    if mean < (low + high) / 2 - TOLERANCE:
        worst = min(gold, key=lambda play: play.rollout.reward or 0.0)
        said = f"a right player earned {mean:g} on average, in bounds of {low:g} to {high:g}"
        return result("rewards.gold", "fail", said, example_id=worst.rollout.example_id)
    return result("rewards.gold", "pass", f"{mean:g} on average")


def _low(check: str, plays: list[PlayRecord], low: float, top: float) -> CheckResult:
    """A bad player earns less than half of what a right one does, on average over the examples."""
    if not plays:
        return result(check, "skip", "no such rollout was scored")
    limit = low + (top - low) / 2
    for player in dict.fromkeys(play.player for play in plays):
        own = [play for play in plays if play.player == player]
        mean = fmean(_rewards(own))
        if mean >= limit - TOLERANCE:
            best = max(own, key=lambda play: play.rollout.reward or 0.0)
            said = f"player `{player}` earned {mean:g} on average; less than {limit:g} is low"
            return result(check, "fail", said, example_id=best.rollout.example_id)
    return result(check, "pass", f"{fmean(_rewards(plays)):g} on average")
