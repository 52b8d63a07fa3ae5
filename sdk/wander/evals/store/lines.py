"""Decides which line of a record counts for a rollout. Folders, replays and the hub share this rule."""

from __future__ import annotations

from collections import Counter


class LineRule:
    """For each key (example, index) only the last line counts. Earlier lines are history.

    A key may be repeated only after a failure: of that rollout or, if rewards compare the rollouts of an
    example, of any rollout in its group, because the group is then played again as a whole. This prevents
    people from repeating rollouts until they like the result.
    """

    def __init__(self, *, group_rewards: bool) -> None:
        self._groups = group_rewards
        self._failed: dict[tuple[str, int], bool] = {}
        self._lines: Counter[tuple[str, int]] = Counter()
        self._failures: Counter[str] = Counter()

    def takes(self, key: tuple[str, int], *, failed: bool) -> bool:
        """Add the next line of the record. Returns False if it is not allowed at this point."""
        before = self._failed.get(key)
        allowed = before is None or before
        if self._groups:
            # A group may be repeated at most once per failure.
            allowed = allowed or self._lines[key] <= self._failures[key[0]]
            self._lines[key] += 1
            self._failures[key[0]] += failed
        self._failed[key] = failed
        return allowed
