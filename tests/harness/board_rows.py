"""A row of a leaderboard with a value in every column."""

from __future__ import annotations

from datetime import UTC, datetime

from wander.wire.boards import LeaderboardRow
from wander.wire.run_record import PassRate


def make_board_row() -> LeaderboardRow:
    """Return a row with a metric `right` and pass rates of two attempts."""
    rate = PassRate(
        k=2, examples=9, pass_at_k=0.5, pass_at_k_low=0.4, pass_at_k_high=0.6, pass_hat_k=0.2,
        pass_hat_k_low=0.1, pass_hat_k_high=0.3,
    )  # fmt: skip
    return LeaderboardRow(
        rank_low=1, rank_high=1, run_id="-run", model="+m", model_kind="X", reward_mean=-1.0, reward_low=-2.0,
        reward_high=0.0, examples=1, rollouts_per_example=1, rollouts=1, failed=0, version="1",
        level="complete", posted_by="@who", posted_at=datetime.now(UTC), url="u", pass_rates=[rate],
        tokens_per_rollout=3.0, usd_per_rollout=0.5, metrics={"right": 0.5},
    )  # fmt: skip
