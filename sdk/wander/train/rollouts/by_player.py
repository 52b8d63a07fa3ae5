"""What each player of rollouts came to, where the environment has players."""

from __future__ import annotations

from collections.abc import Sequence

from wander.types import Rollout


def means_by_player(scored: Sequence[Rollout]) -> dict[str, float]:
    """Return the mean reward and number of turns of each player of rollouts that were scored, by metric."""
    found: dict[str, float] = {}
    for player in dict.fromkeys(name for rollout in scored for name in rollout.rewards):
        own = [rollout for rollout in scored if player in rollout.rewards]
        turns = [turn.player == player for rollout in own for turn in rollout.turns]
        found[f"reward/{player}"] = sum(rollout.rewards[player] for rollout in own) / len(own)
        found[f"turns/{player}"] = sum(turns) / len(own)
    return found
