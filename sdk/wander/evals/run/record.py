"""Keeps the record of a run while it is played, in its folder or in memory, and its running totals.

The aggregates are computed at the end, from the record in the order of the manifest. Floating-point sums
depend on the order of their terms, and rollouts finish in any order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

from wander.evals.run.budget import count_answers, count_tokens
from wander.evals.run.plan import EvaluationPlan
from wander.evals.stats.summary import is_number, summarize_run
from wander.evals.store.bookmark import Bookmark, bookmark_of
from wander.evals.store.examples import RolloutOrder
from wander.evals.store.folder import RunFolder
from wander.rollout.spans import rollout_spans
from wander.types import Rollout, Usage
from wander.wire import EndpointUse, RunManifest, RunSummary

_DONE, _FAILED = 1, 2
"""State of a rollout. 0 means missing."""
_MARK_EVERY = 50_000
"""Number of rollouts after which a long run writes a new bookmark. After a kill, at most this many are read
again."""

PlannedGroup = tuple[int, range]
"""Position of an example, and the indices of its rollouts to play: one rollout, or the whole group if rewards
compare the rollouts of an example."""


class RunRecord:
    """The rollouts of a run. Their state takes one byte each, so a plan may have a million of them."""

    def __init__(self, folder: RunFolder | None, manifest: RunManifest) -> None:
        self.folder = folder
        self.manifest = manifest if folder is None else folder.manifest
        self.kept: list[Rollout] = []
        """Rollouts of a run without a folder."""
        self.rollouts = self.scored = 0
        """Number of recorded rollouts, and of those with a reward."""
        self.usage = Usage()
        """Tokens of all rollouts so far."""
        self.resumed = self.left_out = 0
        """Number of rollouts from earlier sessions, and of missing rollouts that this session skips."""
        self.answers = 0
        """Number of model calls with a recorded answer."""
        self.unreported = EndpointUse()
        """Endpoint use of killed sessions, which could not save it. Derived from the rollouts."""
        self.is_closed = False
        """Whether recording has ended. Later rollouts, which ignored their cancellation, are dropped."""
        self._order = RolloutOrder(self.manifest.example_ids, self.manifest.rollouts_per_example)
        self._states = bytearray(len(self._order))
        self._reward_sum = 0.0
        self._is_untouched = False
        self._bookmark = None if folder is None else bookmark_of(folder)
        self._spans = rollout_spans(self.manifest)
        self._marked = 0
        """Number of rollouts in the last bookmark."""

    @property
    def total(self) -> int:
        """Number of rollouts of the whole run."""
        return self.manifest.expected_rollouts

    @property
    def is_complete(self) -> bool:
        """Whether every rollout is recorded."""
        return self.rollouts == self.total

    @property
    def reward_mean(self) -> float | None:
        """Mean reward so far, or None before the first scored rollout."""
        return self._reward_sum / self.scored if self.scored else None

    def resume(self) -> Usage:
        """Read the rollouts of earlier sessions, and return the tokens that they spent.

        A group is done only if all of its rollouts are. The files of a run that was already complete and
        closed do not change.
        """
        if self.folder is None:
            return Usage()
        mark = None if self._bookmark is None else self._bookmark.read()
        spent = Usage() if mark is None else self._restore(mark)
        for rollout, is_whole in self._read_earlier(self.folder, mark):
            self.answers += count_answers(rollout.turns, self.manifest.players)
            spent += count_tokens(rollout.turns)
            if rollout.failure is not None:
                self._states[self._order.position_of(rollout)] = _FAILED
            elif is_whole:
                self._count(rollout)
        reported = 0 if self.manifest.endpoints is None else self.manifest.endpoints.calls
        if self.answers > reported:
            self.unreported = EndpointUse(calls=self.answers - reported, at_least=True)
        self.resumed = self._states.count(_DONE)
        self._is_untouched = self.resumed == self.total and self.manifest.ended_at is not None
        if not self._is_untouched:
            self.folder.resume()
        return spent

    def _restore(self, mark: Bookmark) -> Usage:
        """Restore the state from a bookmark. Failed rollouts in it count as not played."""
        self._states[:] = mark.state
        self.rollouts, self.scored = self._states.count(_DONE), mark.scored
        self._reward_sum, self.usage, self.answers = mark.reward_sum, mark.usage, mark.answers
        return mark.spent

    def _read_earlier(self, folder: RunFolder, mark: Bookmark | None) -> Iterator[tuple[Rollout, bool]]:
        """Yield the rollouts recorded since a bookmark, each with whether its group is complete."""
        if (unit := self.manifest.played_together) > 1:
            good = Counter(rollout.example_id for rollout in folder.rollouts() if rollout.failure is None)
            yield from ((rollout, good[rollout.example_id] == unit) for rollout in folder.rollouts())
            return
        start = (mark.length, mark.lines) if mark is not None else (0, 0)
        for number, rollout in folder.every_line(*start):
            if self._states[self._order.position_of(rollout)] == _DONE:
                raise folder.repeats(number)
            yield rollout, True

    def count_left_out(self, plan: EvaluationPlan) -> int:
        """Return the number of missing rollouts that are not played, because only failed groups are."""
        if not plan.only_failed:
            return 0
        unit = self.manifest.played_together
        failed = sum(self._has_failed(start) for start in range(0, len(self._states), unit))
        return self.total - self.resumed - failed * unit

    def missing_groups(self, plan: EvaluationPlan) -> Iterator[PlannedGroup]:
        """Yield the groups that still need to be played."""
        unit, per_example = self.manifest.played_together, plan.rollouts_per_example
        for number, start in enumerate(range(0, len(self._states), unit)):
            is_wanted = self._has_failed(start) if plan.only_failed else self._states[start] != _DONE
            if is_wanted and (plan.shard is None or plan.shard.takes(number)):
                yield start // per_example, range(start % per_example, start % per_example + unit)

    def _has_failed(self, start: int) -> bool:
        """Return whether a group has a failed rollout. It is then played again as a whole."""
        return _FAILED in self._states[start : start + self.manifest.played_together]

    def append(self, rollout: Rollout) -> None:
        """Record a finished rollout."""
        if self.is_closed:
            return
        if self.folder is None:
            self.kept.append(rollout)
        else:
            rollout = self.folder.append(rollout)
        if self._spans is not None:
            self._spans.add(rollout)
        self.answers += count_answers(rollout.turns, self.manifest.players)
        self._count(rollout)

    def _count(self, rollout: Rollout) -> None:
        self.rollouts += 1
        self.usage += rollout.usage
        self._states[self._order.position_of(rollout)] = _DONE if rollout.failure is None else _FAILED
        reward = rollout.reward
        if rollout.failure is None and reward is not None and is_number(reward):
            self.scored += 1
            self._reward_sum += reward

    async def sync(self, spent: Usage) -> None:
        """Force appended rollouts to the disk. `spent` is the number of tokens so far, for the bookmark."""
        if self.folder is None:
            return
        await asyncio.to_thread(self.folder.sync)
        if self._bookmark is not None and self.rollouts >= self._marked + _MARK_EVERY:
            # The bookmark is built here on the event loop, between two rollouts. The thread only writes it.
            await asyncio.to_thread(self._bookmark.write, self._mark(self.folder, spent))

    def _mark(self, folder: RunFolder, spent: Usage) -> Bookmark:
        self._marked = self.rollouts
        return Bookmark(
            run_id=self.manifest.run_id,
            length=folder.plain_bytes(),
            state=bytes(self._states),
            scored=self.scored,
            reward_sum=self._reward_sum,
            usage=self.usage,
            spent=spent,
            answers=self.answers,
        )

    def finish(self, spent: Usage, **learned: Any) -> RunSummary:
        """Write the summary of the run, and the fields of its manifest that this session `learned`."""
        if self.folder is None:
            return summarize_run(self.manifest, sorted(self.kept, key=self._order.position_of))
        if self._bookmark is not None and not self.is_complete:
            self._bookmark.write(self._mark(self.folder, spent))
        # The record still holds failures of earlier sessions that were not played again.
        summary = summarize_run(self.manifest, self.folder.rollouts_in_order())
        if self._is_untouched:
            return summary
        if learned:
            self.folder.change_manifest(**learned)
        if self.is_complete:
            self.folder.finish(summary)
            if self._bookmark is not None:
                self._bookmark.remove()
        else:
            self.folder.write_summary(summary)
        self.manifest = self.folder.manifest
        return summary
