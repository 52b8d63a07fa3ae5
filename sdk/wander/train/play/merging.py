"""A step that several processes played, as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from wander.train.play.gathering import PlayedStep
from wander.train.play.rollouts import StepRollouts


def merged_step(shares: Sequence[PlayedStep]) -> PlayedStep:
    """Return the step of which each process played a share: groups in the order of their slots."""
    if len(shares) == 1:
        return shares[0]
    rounds = zip_longest(*(share.calls for share in shares))
    return PlayedStep(
        groups=[group for share in shares for group in share.groups],
        played=[group for share in shares for group in share.played],
        rewards=[reward for share in shares for reward in share.rewards],
        first_idle=sum(share.first_idle for share in shares),
        refilled=sum(share.refilled for share in shares),
        left_out=sum(share.left_out for share in shares),
        calls=[_merged_round([call for call in calls if call is not None]) for calls in rounds],
    )


def _merged_round(calls: Sequence[StepRollouts]) -> StepRollouts:
    tokens = sum(call.sampled_tokens for call in calls)
    return StepRollouts(
        rollouts=[rollout for call in calls for rollout in call.rollouts],
        trajectories=[trajectory for call in calls for trajectory in call.trajectories],
        # They play side by side, and wait for the slowest.
        seconds=max(call.seconds for call in calls),
        model_seconds=max(call.model_seconds for call in calls),
        retried=sum(call.retried for call in calls),
        sampled_tokens=tokens,
        entropy=sum(call.entropy * call.sampled_tokens for call in calls) / tokens if tokens else 0.0,
    )
