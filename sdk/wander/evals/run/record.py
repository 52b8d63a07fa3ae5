"""The record of a run while it is played: in its folder or in memory, and what its rollouts have come to.

The aggregates are made at the end, from the record in the manifest's order: sums of floating-point numbers
depend on their order, and rollouts end in any.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

from wander.evals.run.budget import count_answers, count_tokens
from wander.evals.run.plan import EvaluationPlan
from wander.evals.stats.summary import is_number, summarise_run
from wander.evals.store.bookmark import Bookmark, bookmark_of
from wander.evals.store.examples import RolloutOrder
from wander.evals.store.folder import RunFolder
from wander.types import Rollout, Usage
from wander.wire import EndpointUse, RunManifest, RunSummary

_DONE, _FAILED = 1, 2
"""What a rollout has come to; 0 of one that is missing."""
_MARK_EVERY = 50_000
"""Rollouts after which a long run's bookmark is renewed: at most this number is read again after a kill."""

PlannedGroup = tuple[int, range]
"""An example's place and which of its rollouts to play: one, or where rewards compare them the group."""


class RunRecord:
    """The rollouts of a run. Each is counted in one byte, so a plan of a million costs no more."""

    def __init__(self, folder: RunFolder | None, manifest: RunManifest) -> None:
        self.folder = folder
        self.manifest = manifest if folder is None else folder.manifest
        self.kept: list[Rollout] = []
        """The rollouts of a run without a folder."""
        self.rollouts = self.scored = 0
        """Rollouts on record, and those of them that have a reward."""
        self.usage = Usage()
        """The tokens of all rollouts so far."""
        self.resumed = self.left_out = 0
        """Rollouts that an earlier part has played, and those that are missing and not asked for."""
        self.answers = 0
        """Calls of the model that the record has answers of."""
        self.unreported = EndpointUse()
        """What parts of the run that were killed could not say of their calls."""
        self.is_closed = False
        """Set once nothing more is recorded: a rollout that ignored its cancellation comes too late."""
        self._order = RolloutOrder(self.manifest.example_ids, self.manifest.rollouts_per_example)
        self._states = bytearray(len(self._order))
        self._reward_sum = 0.0
        self._is_untouched = False
        self._bookmark = None if folder is None else bookmark_of(folder)
        self._marked = 0
        """Rollouts that the bookmark knows of."""

    @property
    def total(self) -> int:
        """Rollouts of the whole run."""
        return self.manifest.expected_rollouts

    @property
    def is_complete(self) -> bool:
        """Whether every rollout is on record."""
        return self.rollouts == self.total

    @property
    def reward_mean(self) -> float | None:
        """Mean of the rollouts so far; None before the first scored one."""
        return self._reward_sum / self.scored if self.scored else None

    def resume(self) -> Usage:
        """Learn what an earlier part of this run has come to, and return the tokens that it spent.

        Of groups only whole ones are done. A run that was complete and closed before stays as it is, to the
        byte.
        """
        if self.folder is None:
            return Usage()
        mark = None if self._bookmark is None else self._bookmark.read()
        spent = Usage() if mark is None else self._go_on_from(mark)
        for rollout, is_whole in self._read_earlier(self.folder, mark):
            self.answers += count_answers(rollout.turns, self.manifest.players)
            spent += count_tokens(rollout.turns)
            if rollout.failure is not None:
                self._states[self._order.position_of(rollout)] = _FAILED
            elif is_whole:
                self._count(rollout)
        told = 0 if self.manifest.endpoints is None else self.manifest.endpoints.calls
        if self.answers > told:
            self.unreported = EndpointUse(calls=self.answers - told, at_least=True)
        self.resumed = self._states.count(_DONE)
        self._is_untouched = self.resumed == self.total and self.manifest.ended_at is not None
        if not self._is_untouched:
            self.folder.resume()
        return spent

    def _go_on_from(self, mark: Bookmark) -> Usage:
        """Count what a bookmark knows; what failed before it counts as not played."""
        self._states[:] = mark.state
        self.rollouts, self.scored = self._states.count(_DONE), mark.scored
        self._reward_sum, self.usage, self.answers = mark.reward_sum, mark.usage, mark.answers
        return mark.spent

    def _read_earlier(self, folder: RunFolder, mark: Bookmark | None) -> Iterator[tuple[Rollout, bool]]:
        """Yield what is on record since a bookmark, and whether all that is played with it is."""
        if (unit := self.manifest.played_together) > 1:
            good = Counter(rollout.example_id for rollout in folder.rollouts() if rollout.failure is None)
            yield from ((rollout, good[rollout.example_id] == unit) for rollout in folder.rollouts())
            return
        start = (mark.length, mark.lines) if mark is not None else (0, 0)
        for number, rollout in folder.every_line(*start):
            if self._states[self._order.position_of(rollout)] == _DONE:
                raise folder.repeats(number)
            yield rollout, True

    def missing_groups(self, plan: EvaluationPlan) -> Iterator[PlannedGroup]:
        """Return an iterator over the groups that remain to be played."""
        states, unit, each = self._states, self.manifest.played_together, plan.rollouts_per_example
        starts, shard, only_failed = range(0, len(states), unit), plan.shard, plan.only_failed
        # Of a group one failed rollout is enough: it is played again as a whole.
        if only_failed:
            failed = sum(_FAILED in states[start : start + unit] for start in starts)
            self.left_out = self.total - self.resumed - failed * unit
        return (
            (start // each, range(start % each, start % each + unit))
            for number, start in enumerate(starts)
            if (_FAILED in states[start : start + unit] if only_failed else states[start] != _DONE)
            and (shard is None or shard.takes(number))
        )

    def append(self, rollout: Rollout) -> None:
        """Record a finished rollout."""
        if self.is_closed:
            return
        if self.folder is None:
            self.kept.append(rollout)
        else:
            rollout = self.folder.append(rollout)
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
        """Force what was appended to the disk; `spent` (all tokens so far) is for a long run's bookmark."""
        if self.folder is None:
            return
        await asyncio.to_thread(self.folder.sync)
        if self._bookmark is not None and self.rollouts >= self._marked + _MARK_EVERY:
            # What it holds is gathered here, between two rollouts, and not in the thread.
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
        """Write what the run came to, and fields of its manifest that this part has `learned`."""
        if self.folder is None:
            return summarise_run(self.manifest, sorted(self.kept, key=self._order.position_of))
        if self._bookmark is not None and not self.is_complete:
            self._bookmark.write(self._mark(self.folder, spent))
        # Failures of an earlier part that were not played again still stand there.
        summary = summarise_run(self.manifest, self.folder.rollouts_in_order())
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
