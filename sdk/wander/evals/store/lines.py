"""Which line of a record speaks for a rollout, the same for folders, replays and the hub."""

from __future__ import annotations

from collections import Counter


class LineRule:
    """Of the lines of one key (example, index) the last one counts; the earlier ones are history.

    A line may follow another of its key only where something failed: that rollout, or, in an environment
    whose rewards compare the rollouts of an example, some rollout of its group, which is then played again
    as a whole. So nobody repeats rollouts until they please.
    """

    def __init__(self, *, group_rewards: bool) -> None:
        self._groups = group_rewards
        self._failed: dict[tuple[str, int], bool] = {}
        self._lines: Counter[tuple[str, int]] = Counter()
        self._failures: Counter[str] = Counter()

    def takes(self, key: tuple[str, int], *, failed: bool) -> bool:
        """Take the next line of the record; False when it may not stand where it does."""
        before = self._failed.get(key)
        allowed = before is None or before
        if self._groups:
            # A group is played again once for each time that it failed, at most.
            allowed = allowed or self._lines[key] <= self._failures[key[0]]
            self._lines[key] += 1
            self._failures[key[0]] += failed
        self._failed[key] = failed
        return allowed
