"""Play a recorded run again from its completions, or score it again, and compare it with its record.

A rollout of a deterministic environment is a pure function of environment version, arguments, example, seed
and completions, so the second playing must give the same messages, metrics and reward, bit for bit. What is
compared is listed in `COMPARED`; times and token counts are not.

Failed rollouts are not compared: what broke them (an endpoint, a killed process) is no part of that function.
They count as `failed`, and a run that has any is no further verified than `claimed`.

Where outside observations enter the rollouts, nobody can play them twice. Then the rubric runs on the stored
transcripts, with what judges answered taken from the record, and `RESCORED` is compared. A rubric that needs
what only the playing leaves in the state cannot do that: such rollouts are `unscored`, and prove nothing.
"""

from __future__ import annotations

import asyncio
import json
import marshal
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from random import SystemRandom
from typing import Any

from wander.clients.base import Client
from wander.clients.players import require_players
from wander.clients.replay import ReplayClient, TranscriptClient
from wander.errors import ConfigError, NotRecorded, RunError
from wander.evals.store.examples import PAGE, PackedExamples, Places
from wander.handle import EnvironmentHandle, RolloutRequest
from wander.rollout.garbage import fewer_collections
from wander.rollout.outside_calls import JUDGE_ANSWERS
from wander.rollout.outside_calls import PUBLIC_KEY as OUTSIDE_CALLS
from wander.seeding import derived_rng
from wander.types import Example, Rollout
from wander.wire import RunManifest
from wander.wire.verification import Divergence, LevelSought, Method, ReplayReport

COMPARED = (
    "seed",
    "prompt",
    "answer",
    "completion",
    "stop_reason",
    "truncated",
    "failure",
    "reward",
    "metrics",
    "rewards",
    "player_metrics",
    "info",
)
"""What must be the same in every playing of a rollout, in the order in which a difference is told."""
RESCORED = ("seed", "answer", "failure", "reward", "metrics", "rewards", "player_metrics", "info")
"""What must be the same when a transcript is scored again."""
_STATED = ("deterministic", "group_rewards", "max_turns", "players", "reward_functions", "reward_bounds")
"""What a manifest says of its environment that decides how a run reads, and whether it can be replayed."""
_OUTSIDE = {JUDGE_ANSWERS, OUTSIDE_CALLS}
"""Where a rollout's record has what others than its own model answered: no replay proves that."""
WITH_LINES = ("exhaustive", "play")
"""Kinds of runs in which the environment's choices were made for it, and are made so again."""
TWICE = 64
"""Rollouts, about, that are played in other surroundings too; of a run that is no larger, all."""
SHOWN = 10_000
"""Most divergences that a report tells one by one."""
_CHUNK = 256
"""Rollouts that are held in memory at once, where rewards do not compare those of a group."""
_UNPACKED = 10_000
"""Examples that are held as they are, which is faster than to pack them."""
_BITS = 512

OnReplayed = Callable[[int, int], None]
"""Takes the rollouts played again so far and how many of them differ."""


async def replay_run(
    environment: EnvironmentHandle,
    manifest: RunManifest,
    rollouts: Iterable[Rollout],
    *,
    level: LevelSought = "replayed",
    elsewhere: EnvironmentHandle | None = None,
    sample: int | None = None,
    sample_seed: int = 0,
    concurrency: int = 64,
    on_replayed: OnReplayed | None = None,
) -> ReplayReport:
    """Play the rollouts of a run again, or score them again, and compare them with their record.

    - `rollouts`: each key at most once; read in pieces, so that a long run needs little memory, except where
      reward functions compare the rollouts of a group.
    - `level`: which level is sought; the `highest` replays what is deterministic and rescores what is not.
    - `elsewhere`: the same environment in other surroundings (hash seed, clock...). There, what came out
      otherwise is played once more, so that the report tells whose fault it is, and some `TWICE` of the
      others, drawn at random: they too must be the same.
    - `sample`: play only so many rollouts again (of whole groups), drawn with `sample_seed`.

    The report's `refused` says why a run cannot be compared: the environment declares that it is not
    deterministic, or its examples are not those of the manifest. Raises `RunError` for a rollout that the
    manifest does not hold.
    """
    started = time.monotonic()
    deterministic = environment.info.deterministic
    rescoring = level == "rescored" or (level == "highest" and not deterministic)
    method: Method = "rescore" if rescoring else "replay"
    report = ReplayReport(
        run_id=manifest.run_id,
        method=method,
        expected=manifest.expected_rollouts,
        recorded=0,
        replayed=0,
        same=0,
        differing=0,
        failed=0,
    )
    replay = _Replay(environment, manifest, report, concurrency, on_replayed, elsewhere)
    await replay.read_examples()
    report.refused = replay.contradiction()
    report.contradicted = report.refused is not None
    if report.refused is None and not deterministic and method == "replay":
        report.refused = f"`{environment.info.name}` declares that it is not deterministic"
    chosen = None
    if report.refused is None:
        chosen = _sample(manifest, environment.info.group_rewards, sample, sample_seed)
    if chosen is not None:
        report.sampled, report.sample_seed = True, sample_seed
    with fewer_collections(_CHUNK):
        stream = iter(rollouts)
        while chunk := list(stream if environment.info.group_rewards else islice(stream, _CHUNK)):
            await replay.add(chunk, chosen)
    report.same = report.replayed - report.differing - report.unscored
    report.divergences.sort(key=lambda each: (each.example_id, each.index))
    report.seconds = time.monotonic() - started
    return report


def first_difference(recorded: Rollout, again: Rollout) -> str | None:
    """Return what differs first between two playings of a rollout, or None."""
    found = first_divergence(recorded, again)
    return None if found is None else found.difference


def first_divergence(
    recorded: Rollout, again: Rollout, compared: Sequence[str] = COMPARED
) -> Divergence | None:
    """Return where two playings of a rollout first differ in what is compared, or None."""
    was, now = vars(recorded), vars(again)
    values = itemgetter(*compared)
    same = _written(values(was)) == _written(values(now))
    moved = [turn.player for turn in recorded.turns], [turn.player for turn in again.turns]
    if same and moved[0] == moved[1]:
        return None

    def found(part: str, difference: str, message: int | None = None) -> Divergence:
        return Divergence(
            example_id=recorded.example_id,
            index=recorded.index,
            part=part,
            message=message,
            difference=difference,
        )

    for name in compared:
        one, other = was[name], now[name]
        if isinstance(one, list) and isinstance(other, list):
            for number, (left, right) in enumerate(zip(one, other, strict=False)):
                if _differ(left, right):
                    told = f"message {number} of the {name} is {_excerpt(right)}, not {_excerpt(left)}"
                    return found(name, told, number)
            if len(one) != len(other):
                told = f"the {name} has {len(other)} messages, not {len(one)}"
                return found(name, told, min(len(one), len(other)))
        elif _differ(one, other):
            return found(name, f"the {name} is {_excerpt(other)}, not {_excerpt(one)}")
    if len(recorded.turns) != len(again.turns):
        return found("turns", f"the rollout takes {len(again.turns)} turns, not {len(recorded.turns)}")
    if moved[0] != moved[1]:
        return found("turns", f"the turns are of {_excerpt(moved[1])}, not {_excerpt(moved[0])}")
    return None


@dataclass
class _Replay:
    """The state of one replay while it runs."""

    environment: EnvironmentHandle
    manifest: RunManifest
    report: ReplayReport
    concurrency: int
    on_replayed: OnReplayed | None
    elsewhere: EnvironmentHandle | None = None
    seen: dict[int, int] = field(default_factory=dict)
    """A bit for each rollout of the manifest that was given, `_BITS` of them in a number."""

    def __post_init__(self) -> None:
        ids, exhaustive = self.manifest.example_ids, self.manifest.kind == "exhaustive"
        most = self.manifest.expected_rollouts if exhaustive else self.manifest.rollouts_per_example
        self.examples, self.places = PackedExamples(unpacked=_UNPACKED), Places(ids, most)
        self.most, self.at = most, array("q", [-1]) * len(ids)
        """The place among the examples of each that the manifest names; -1 of one that is not there."""
        self.share = TWICE / max(1, self.manifest.expected_rollouts)
        self.draw = SystemRandom()
        self.others = self.manifest.players.keys() - self.manifest.scripts.keys()
        """Players who were asked, other than the model and scripts."""

    async def read_examples(self) -> None:
        """Learn the manifest's examples, as far as the environment has them."""
        async for example in _read_examples(self.environment, self.manifest):
            if (place := self.places.find((example.example_id, 0))) is not None:
                self.at[place // self.most] = len(self.examples)
                self.examples.append(example)
                if len(self.examples) == len(self.at):
                    break

    def example_of(self, name: str) -> Example:
        """Return an example that the manifest names, and the environment has."""
        place = self.places.find((name, 0))
        assert place is not None
        return self.examples[self.at[place // self.most]]

    def contradiction(self) -> str | None:
        """Return what the manifest says of the environment and is not so, or None."""
        stated, actual = self.manifest.environment.info, self.environment.info
        if stated.reward_bounds is None and not any(one.bounds for one in stated.reward_functions):
            # Runs recorded before bounds were: their intervals follow from the weights alone.
            actual = actual.model_copy(
                update={
                    "reward_bounds": None,
                    "reward_functions": [
                        one.model_copy(update={"bounds": None}) for one in actual.reward_functions
                    ],
                }
            )
        for name in _STATED:
            if getattr(stated, name) != getattr(actual, name):
                return f"the run states another `{name}` than the environment has"
        try:
            require_players(self.environment.info, self.manifest.players)
        except ConfigError as error:
            return str(error)
        if -1 in self.at:
            missing = self.manifest.example_ids[self.at.index(-1)]
            return f"`{self.environment.info.name}` has no example `{missing}`"
        if self.examples.digest_in_order(self.at) != self.manifest.task_set_sha256:
            return "the examples are not those of the run: their digest is another one"
        return None

    async def add(
        self,
        rollouts: Sequence[Rollout],
        chosen: set[tuple[str, int]] | None,
    ) -> None:
        """Take some of the run's rollouts: count them and, where asked, play them again."""
        for rollout in rollouts:
            self._count(rollout)
        self.report.recorded += len(rollouts)
        playable = [each for each in rollouts if each.failure is None]
        self.report.failed += len(rollouts) - len(playable)
        if self.report.refused is not None:
            return
        if chosen is not None:
            playable = [each for each in playable if each.key in chosen]
        groups: Iterable[list[Rollout]] = [[each] for each in playable]
        if self.environment.info.group_rewards:
            playable.sort(key=lambda each: each.key)
            groups = [list(group) for _, group in groupby(playable, key=lambda each: each.example_id)]
        client: Client = ReplayClient(
            playable, lines=self.manifest.kind in WITH_LINES, scripts=self.manifest.scripts
        )
        if self.report.method == "rescore":
            client = TranscriptClient(playable)
        waiting = iter([(self.example_of(group[0].example_id), group) for group in groups])

        async def work() -> None:
            for example, group in waiting:
                await self._compare(client, example, group)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(max(1, self.concurrency), len(playable))):
                tasks.create_task(work())

    def _count(self, rollout: Rollout) -> None:
        place = self.places.place_of(rollout)
        number, bit = place // _BITS, 1 << place % _BITS
        if self.seen.get(number, 0) & bit:
            raise RunError(f"rollout `{rollout.example_id}/{rollout.index}` stands twice in the run")
        self.seen[number] = self.seen.get(number, 0) | bit

    async def _compare(self, client: Client, example: Example, recorded: list[Rollout]) -> None:
        again = await self._play(self.environment, client, example, recorded)
        report = self.report
        found = [self._judge(*pair) for pair in zip(recorded, again, strict=True)]
        if self.elsewhere is not None and (any(found) or self.draw.random() < self.share):
            other = await self._play(self.elsewhere, client, example, recorded)
            report.twice += len(other)
            pairs = zip(recorded, other, strict=True)
            found = [_attribute(here, self._judge(*pair)) for here, pair in zip(found, pairs, strict=True)]
        report.replayed += len(recorded)
        if report.method == "replay":
            report.answered += sum(map(self._was_answered, recorded))
        for one in found:
            if isinstance(one, str):
                report.unscored += 1
                report.unscored_reason = report.unscored_reason or one
            elif one is not None:
                report.differing += 1
                if len(report.divergences) < SHOWN:
                    report.divergences.append(one)
        if self.on_replayed is not None:
            self.on_replayed(report.replayed, report.differing)

    def _was_answered(self, recorded: Rollout) -> bool:
        """Tell whether somebody else than the model, or a script that plays anew, answered in a rollout."""
        if self.others and any(turn.player in self.others for turn in recorded.turns):
            return True
        return not _OUTSIDE.isdisjoint(recorded.info)

    async def _play(
        self, environment: EnvironmentHandle, client: Client, example: Example, recorded: list[Rollout]
    ) -> list[Rollout]:
        return await environment.play_request(
            RolloutRequest.of(
                client,
                example,
                [each.index for each in recorded],
                run_seed=self.manifest.seed,
                sampling=self.manifest.sampling,
                together=self.environment.info.group_rewards,
            )
        )

    def _judge(self, recorded: Rollout, again: Rollout) -> Divergence | str | None:
        """Return what differs, or why a transcript cannot be scored, or None."""
        if self.report.method == "replay":
            return first_divergence(recorded, again)
        failure = again.failure
        # A rubric that failed on a transcript, other than by asking what the record cannot answer.
        if failure and failure.boundary == "rubric" and failure.type != NotRecorded.__name__:
            return failure.message
        spoken = sum(each.get("role") == "assistant" for each in recorded.completion)
        if len(recorded.turns) > spoken:
            return f"the record has {len(recorded.turns)} turns, but {spoken} messages of the model"
        return first_divergence(recorded, again, RESCORED)


def _attribute(here: Divergence | str | None, there: Divergence | str | None) -> Divergence | str | None:
    """Say of a rollout that came out as recorded in one of two processes alone what that means."""
    if isinstance(here, str) or isinstance(there, str) or (here is None) == (there is None):
        return here if here is not None else there
    found = here or there
    assert found is not None
    why = "only under some hash seeds, clocks, time zones, locales or host names"
    return found.model_copy(update={"difference": f"{found.difference} ({why}: it depends on them)"})


async def _read_examples(environment: EnvironmentHandle, manifest: RunManifest) -> AsyncIterator[Example]:
    """Yield the examples of the manifest's split, in pages; of an endless one as many as the run can name."""
    if manifest.kind == "exhaustive" or manifest.lines is not None:
        for example in await environment.openings():
            yield example
        return
    info = environment.info
    size = info.eval_examples if manifest.split == "eval" else info.train_examples
    end = len(manifest.example_ids) if size is None else size
    for start in range(0, end, PAGE):
        page = await environment.examples(manifest.split, start, min(PAGE, end - start))
        for example in page:
            yield example
        if not page:
            return


def _sample(manifest: RunManifest, groups: bool, size: int | None, seed: int) -> set[tuple[str, int]] | None:
    """Draw the keys to play again: whole groups where rewards compare them; None means all."""
    if size is None or size >= manifest.expected_rollouts or manifest.kind == "exhaustive":
        return None  # the keys of lines are known from the rollouts alone
    numbers = range(manifest.rollouts_per_example)
    draw = derived_rng(seed, "replayed sample", manifest.run_id)
    if groups:
        names = draw.sample(manifest.example_ids, max(1, size // manifest.rollouts_per_example))
        return {(name, index) for name in names for index in numbers}
    # By their numbers, since a manifest may name more rollouts than memory holds.
    keys = draw.sample(range(len(manifest.example_ids) * len(numbers)), size)
    return {(manifest.example_ids[key // len(numbers)], key % len(numbers)) for key in keys}


def _written(values: tuple[Any, ...]) -> bytes | str:
    """Return values so that the same ones give the same, and 1, 1.0 and True do not."""
    try:
        return marshal.dumps(values, 2)  # four times faster than `repr`; later ones tell copies apart
    except ValueError:
        return repr(values)


def _differ(one: Any, other: Any) -> bool:
    # Equal values are the common case, and `repr`, unlike `==`, tells 1, 1.0 and True apart.
    return repr(one) != repr(other) and _canonical(one) != _canonical(other)


def _canonical(value: Any) -> str:
    plain = value.model_dump() if hasattr(value, "model_dump") else value
    # Unlike what is stored, what was played just now may hold NaN, or an object that is no JSON.
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=repr)


def _excerpt(value: Any) -> str:
    content = value.get("content") if isinstance(value, dict) and "role" in value else value
    text = content if isinstance(content, str) else _canonical(content)
    return f"`{text[:120]}...`" if len(text) > 120 else f"`{text}`"
