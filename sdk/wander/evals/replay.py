"""Play a recorded run again from its completions, or score it again, and compare it with its record.

A rollout of a deterministic environment is a pure function of environment version, arguments, example, seed
and completions, so the second playing must give the same messages, metrics and reward, bit for bit. What is
compared is listed in `COMPARED`; times and token counts are not.

Failed rollouts are not compared: what broke them (an endpoint, a killed process) is no part of that function.
They count as `failed`, and a run that has any is no further verified than `claimed`.

A difference counts if it occurs again. A rollout that fails in the replay has failed, and does not differ:
it is replayed twice more, alone, and then counts as `undecided`. If its process was lost or over a limit, the
rollout counts as `unfinished` too, since another replay may get further.

If outside observations enter the rollouts, nobody can play them twice. Then the rubric runs on the stored
transcripts, with the answers of judges taken from the record, and `RESCORED` is compared. A rubric that needs
the state that only playing leaves fails there, so such rollouts are undecided as well.
"""

from __future__ import annotations

import asyncio
import json
import marshal
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from random import SystemRandom
from typing import Any, NamedTuple

from wander.clients.base import NOT_RECORDED, Client
from wander.clients.players import require_players
from wander.clients.replay import RecordClient, ReplayClient, TranscriptClient
from wander.errors import ConfigError, RunError
from wander.evals.store.examples import PAGE, PackedExamples, RolloutOrder
from wander.handle import EnvironmentHandle, RolloutRequest
from wander.rollout.garbage import fewer_collections
from wander.rollout.outside_calls import JUDGE_ANSWERS, SCRIPTED
from wander.rollout.outside_calls import PUBLIC_KEY as OUTSIDE_CALLS
from wander.seeding import derived_rng
from wander.types import EnvironmentInfo, Example, Rollout
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
_NOT_COMPARED = {
    *("name", "kind", "tags", "reference_scores"),  # pages take them from the environment
    *("arguments", "defaults"),  # compared by what they come to
}
"""What a manifest states of its environment that the environment itself need not state too."""
WITH_LINES = ("exhaustive", "play")
"""Kinds of runs in which the environment's choices were made for it, and are made so again."""
TWICE = 64
"""Rollouts, about, that are played in other surroundings too; of a run that is no larger, all. After as many
differences that occurred again, further ones are counted as they come."""
TRIES = 3
"""How often a rollout is replayed that fails."""
_MOST_LATER = 1024
"""Rollouts, or groups, that are kept to be replayed alone; more failures are counted as they come."""
_UNFINISHED = ("WorkerLost", "RolloutTimeout", "SandboxError", "WorkerUnreachable")
"""Failures that say nothing about the rollout: its process was lost, or ended for a limit."""
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
    report = ReplayReport.empty(manifest.run_id, manifest.expected_rollouts, method=method)
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
        await replay.add_later()
    report.same = report.replayed - report.differing - report.undecided
    report.divergences.sort(key=lambda each: (each.example_id, each.index))
    report.seconds = time.monotonic() - started
    return report


def first_difference(recorded: Rollout, again: Rollout) -> str | None:
    """Return what differs first between two playings of a rollout, or None."""
    divergence = first_divergence(recorded, again)
    return None if divergence is None else divergence.difference


def first_divergence(
    recorded: Rollout, again: Rollout, compared: Sequence[str] = COMPARED
) -> Divergence | None:
    """Return where two playings of a rollout first differ in what is compared, or None."""
    was, now = _values(recorded), _values(again)
    values = itemgetter(*compared)
    same = _written(values(was)) == _written(values(now))
    players = [turn.player for turn in recorded.turns], [turn.player for turn in again.turns]
    if same and players[0] == players[1]:
        return None

    differ_at = partial(_divergence, recorded)
    for name in compared:
        before, after = was[name], now[name]
        if isinstance(before, list) and isinstance(after, list):
            for number, (left, right) in enumerate(zip(before, after, strict=False)):
                if _differ(left, right):
                    told = f"message {number} of the {name} is {_excerpt(right)}, not {_excerpt(left)}"
                    return differ_at(name, told, number)
            if len(before) != len(after):
                told = f"the {name} has {len(after)} messages, not {len(before)}"
                return differ_at(name, told, min(len(before), len(after)))
        elif _differ(before, after):
            return differ_at(name, f"the {name} is {_excerpt(after)}, not {_excerpt(before)}")
    if len(recorded.turns) != len(again.turns):
        return differ_at("turns", f"the rollout takes {len(again.turns)} turns, not {len(recorded.turns)}")
    if players[0] != players[1]:
        return differ_at("turns", f"the turns are of {_excerpt(players[1])}, not {_excerpt(players[0])}")
    return None


class _Undecided(NamedTuple):
    """A rollout of which a replay shows neither that it is the same nor that it differs."""

    reason: str
    unfinished: bool = False


_Outcome = Divergence | _Undecided | None
"""None if the rollout is the same."""


def _values(rollout: Rollout) -> dict[str, Any]:
    """Return the fields of a rollout, with the answers of judges in an order that no latency decides."""
    fields = vars(rollout)
    answers = rollout.info.get(JUDGE_ANSWERS)
    if not isinstance(answers, list) or len(answers) < 2:
        return fields
    return fields | {"info": rollout.info | {JUDGE_ANSWERS: sorted(answers, key=_canonical)}}


def _divergence(recorded: Rollout, part: str, difference: str, message: int | None = None) -> Divergence:
    return Divergence(
        example_id=recorded.example_id,
        index=recorded.index,
        part=part,
        message=message,
        difference=difference,
    )


@dataclass
class _Replay:
    """The state of one replay while it runs."""

    environment: EnvironmentHandle
    manifest: RunManifest
    report: ReplayReport
    concurrency: int
    on_replayed: OnReplayed | None
    elsewhere: EnvironmentHandle | None = None
    other_stratum: str | None = None
    """An example whose stratum the manifest states otherwise; None if there is none."""
    later: list[list[Rollout]] = field(default_factory=list)
    """Rollouts, by group, that failed and are replayed once more at the end."""
    seen: dict[int, int] = field(default_factory=dict)
    """A bit for each rollout of the manifest that was given, `_BITS` of them in a number."""

    def __post_init__(self) -> None:
        ids, exhaustive = self.manifest.example_ids, self.manifest.kind == "exhaustive"
        most = self.manifest.expected_rollouts if exhaustive else self.manifest.rollouts_per_example
        self.examples, self.order = PackedExamples(unpacked=_UNPACKED), RolloutOrder(ids, most)
        self.most, self.at = most, array("q", [-1]) * len(ids)
        """The place among the examples of each that the manifest names; -1 of one that is not there."""
        self.share = TWICE / max(1, self.manifest.expected_rollouts)
        self.draw = SystemRandom()
        self.others = self.manifest.players.keys() - self.manifest.scripts.keys()
        """Players other than the model and scripts."""

    async def read_examples(self) -> None:
        """Learn the manifest's examples, as far as the environment has them."""
        strata = self.manifest.strata
        async for example in _read_examples(self.environment, self.manifest):
            if (place := self.order.find((example.example_id, 0))) is not None:
                number = place // self.most
                self.at[number] = len(self.examples)
                self.examples.append(example)
                if strata and strata[number : number + 1] != [example.stratum]:
                    self.other_stratum = self.other_stratum or example.example_id
                if self.manifest.choice == "first" and len(self.examples) == len(self.at):
                    break

    def example_of(self, name: str) -> Example:
        """Return an example that the manifest names, and the environment has."""
        place = self.order.find((name, 0))
        assert place is not None
        return self.examples[self.at[place // self.most]]

    def contradiction(self) -> str | None:
        """Return what the manifest says of the environment and is not so, or None."""
        stated, actual = self.manifest.environment.info, self.environment.info
        if stated.reward_bounds is None and not any(function.bounds for function in stated.reward_functions):
            # A run may leave bounds out: the hub takes those of the environment.
            actual = actual.model_copy(
                update={
                    "reward_bounds": None,
                    "reward_functions": [
                        function.model_copy(update={"bounds": None}) for function in actual.reward_functions
                    ],
                }
            )
        if stated.view is None:  # then no page draws one
            actual = actual.model_copy(update={"view": None})
        for name in EnvironmentInfo.model_fields:
            if name not in _NOT_COMPARED and getattr(stated, name) != getattr(actual, name):
                return f"the run states another `{name}` than the environment has"
        pin = self.manifest.environment
        if pin.changed_arguments != pin.model_copy(update={"info": self.environment.info}).changed_arguments:
            return "the run states other defaults of its arguments than the environment has"
        try:
            require_players(self.environment.info, self.manifest.players)
        except ConfigError as error:
            return str(error)
        if -1 in self.at:
            missing = self.manifest.example_ids[self.at.index(-1)]
            return f"`{self.environment.info.name}` has no example `{missing}`"
        if self.examples.digest_in_order(self.at) != self.manifest.task_set_sha256:
            return "the examples are not those of the run: their digest is another one"
        if self.other_stratum is not None:
            return f"the run states another stratum than the example `{self.other_stratum}` has"
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
        playable = [rollout for rollout in rollouts if rollout.failure is None]
        self.report.failed += len(rollouts) - len(playable)
        if self.report.refused is not None:
            return
        if chosen is not None:
            playable = [rollout for rollout in playable if rollout.key in chosen]
        groups: Iterable[list[Rollout]] = [[rollout] for rollout in playable]
        if self.environment.info.group_rewards:
            playable.sort(key=lambda rollout: rollout.key)
            groups = [list(group) for _, group in groupby(playable, key=lambda rollout: rollout.example_id)]
        client = self.client_of(playable)
        waiting = iter([(self.example_of(group[0].example_id), group) for group in groups])

        async def work() -> None:
            for example, group in waiting:
                outcomes = await self._compare(client, example, group)
                if (
                    any(isinstance(outcome, _Undecided) for outcome in outcomes)
                    and len(self.later) < _MOST_LATER
                ):
                    self.later.append(group)
                else:
                    self._keep(group, outcomes)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(max(1, self.concurrency), len(playable))):
                tasks.create_task(work())

    def _count(self, rollout: Rollout) -> None:
        place = self.order.position_of(rollout)
        number, bit = place // _BITS, 1 << place % _BITS
        if self.seen.get(number, 0) & bit:
            raise RunError(f"rollout `{rollout.example_id}/{rollout.index}` stands twice in the run")
        self.seen[number] = self.seen.get(number, 0) | bit

    def client_of(self, recorded: Sequence[Rollout]) -> RecordClient:
        """Return the client that answers for recorded rollouts."""
        name = self.manifest.model.name
        if self.report.method == "rescore":
            return TranscriptClient(recorded, name)
        lines = self.manifest.kind in WITH_LINES
        return ReplayClient(recorded, name, lines=lines, scripts=self.manifest.scripts)

    async def add_later(self) -> None:
        """Replay once more, one after another, the rollouts that failed, so that none disturbs the others."""
        while self.later:
            group = self.later.pop()
            client, example = self.client_of(group), self.example_of(group[0].example_id)
            for _ in range(TRIES - 1):
                outcomes = await self._compare(client, example, group)
                if not any(isinstance(outcome, _Undecided) for outcome in outcomes):
                    break
            self._keep(group, outcomes)

    async def _compare(
        self, client: RecordClient, example: Example, recorded: list[Rollout]
    ) -> list[_Outcome]:
        """Replay rollouts, some of them in other surroundings too, and those that differ once more."""
        sure = self.report.differing >= TWICE
        outcomes = await self._look(self.environment, client, example, recorded, sure=sure)
        if any(isinstance(outcome, _Undecided) for outcome in outcomes):
            return outcomes
        if self.elsewhere is not None and not sure and (any(outcomes) or self.draw.random() < self.share):
            elsewhere = await self._look(self.elsewhere, client, example, recorded, sure=sure)
            self.report.twice += len(elsewhere)
            outcomes = [_attribute(*pair) for pair in zip(outcomes, elsewhere, strict=True)]
        return outcomes

    async def _look(
        self,
        environment: EnvironmentHandle,
        client: RecordClient,
        example: Example,
        recorded: list[Rollout],
        *,
        sure: bool,
    ) -> list[_Outcome]:
        """Replay rollouts in one process; unless `sure`, a difference must occur there again."""

        async def play() -> list[_Outcome]:
            again = await self._play(environment, client, example, recorded)
            return [self._judge(*pair, client) for pair in zip(recorded, again, strict=True)]

        outcomes = await play()
        if sure or not any(isinstance(outcome, Divergence) for outcome in outcomes):
            return outcomes
        return [_confirm(*pair) for pair in zip(outcomes, await play(), strict=True)]

    def _keep(self, recorded: list[Rollout], outcomes: Sequence[_Outcome]) -> None:
        """Count the outcome of some rollouts."""
        report = self.report
        report.replayed += len(recorded)
        judged = list(map(_was_judged, recorded))
        report.judged += sum(judged)
        report.answered += sum(map(self._was_answered, recorded, judged))
        for outcome in outcomes:
            if isinstance(outcome, _Undecided):
                report.undecided += 1
                report.unfinished += outcome.unfinished
                report.undecided_reason = report.undecided_reason or outcome.reason
            elif outcome is not None:
                report.differing += 1
                if len(report.divergences) < SHOWN:
                    report.divergences.append(outcome)
        if self.on_replayed is not None:
            self.on_replayed(report.replayed, report.differing)

    def _was_answered(self, recorded: Rollout, judged: bool) -> bool:
        """Tell whether a judge answered in a rollout from the record, or another model plays in the run.

        Nobody can derive who such a player is, so it counts even if it was never to move.
        """
        return bool(judged or self.others or recorded.info.get(OUTSIDE_CALLS))

    async def _play(
        self, environment: EnvironmentHandle, client: Client, example: Example, recorded: list[Rollout]
    ) -> list[Rollout]:
        return await environment.play_request(
            RolloutRequest.of(
                client,
                example,
                [rollout.index for rollout in recorded],
                run_seed=self.manifest.seed,
                sampling=self.manifest.sampling,
                together=self.environment.info.group_rewards,
            )
        )

    def _judge(self, recorded: Rollout, again: Rollout, client: RecordClient) -> _Outcome:
        """Return what differs, or why nothing can be said, or None."""
        failure, rescoring = again.failure, self.report.method == "rescore"
        lack = client.missing.pop(f"{recorded.example_id}/{recorded.index}", None)
        if lack is None and failure is not None and failure.type == NOT_RECORDED:
            lack = failure.message
        if lack is not None:
            return _divergence(recorded, "failure", lack)
        if failure is not None:
            unfinished = failure.type in _UNFINISHED or failure.boundary == "sandbox"
            return _Undecided(failure.message, unfinished)
        if not rescoring:
            return first_divergence(recorded, again)
        spoken = sum(message.get("role") == "assistant" for message in recorded.completion)
        if len(recorded.turns) > spoken:
            return _Undecided(
                f"the record has {len(recorded.turns)} turns, but {spoken} messages of the model"
            )
        # Calls of other models that the environment made while it was played are not made again.
        played = recorded.model_copy(update={"info": _without_calls(recorded)})
        scored = again.model_copy(update={"info": _without_calls(again)})
        return first_divergence(played, scored, RESCORED)


def _without_calls(rollout: Rollout) -> dict[str, Any]:
    return {name: value for name, value in rollout.info.items() if name != OUTSIDE_CALLS}


def _was_judged(recorded: Rollout) -> bool:
    """Tell whether a judge answered in a rollout from the record; one that is a script answers again."""
    answers = recorded.info.get(JUDGE_ANSWERS)
    return isinstance(answers, list) and not all(
        isinstance(answer, dict) and answer.get(SCRIPTED) for answer in answers
    )


def _confirm(first: _Outcome, second: _Outcome) -> _Outcome:
    """Return the outcome of a rollout that was replayed twice in one process."""
    if not isinstance(first, Divergence):
        return first
    if second is None:
        return _Undecided(f"{first.difference}, and the same as recorded when it was replayed once more")
    return first if isinstance(second, Divergence) else second


def _attribute(here: _Outcome, there: _Outcome) -> _Outcome:
    """Say of a rollout that came out as recorded in one of two processes alone what that means."""
    if isinstance(there, _Undecided):
        return there
    if isinstance(here, _Undecided) or (here is None) == (there is None):
        return here
    divergence = here or there
    assert divergence is not None
    why = "only under some hash seeds, clocks, time zones, locales or host names"
    return divergence.model_copy(
        update={"difference": f"{divergence.difference} ({why}: it depends on them)"}
    )


async def _read_examples(environment: EnvironmentHandle, manifest: RunManifest) -> AsyncIterator[Example]:
    """Yield the examples of the manifest's split, in the pages that the evaluation asked for.

    So an environment that counts what is asked of it cannot tell a replay by that. Of an endless split, at
    most as many are made as the run names.
    """
    if manifest.kind == "exhaustive" or manifest.lines is not None:
        for example in await environment.openings():
            yield example
        return
    info = environment.info
    size = info.eval_examples if manifest.split == "eval" else info.train_examples
    named = len(manifest.example_ids)
    ends = [named if size is None or manifest.choice == "first" else size, size or named]
    start = 0
    for end in ends:
        while start < end:
            page = await environment.examples(manifest.split, start, min(PAGE, end - start))
            for example in page:
                yield example
            if not page:
                return
            start += len(page)


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


def _differ(before: Any, after: Any) -> bool:
    # Equal values are the common case, and `repr`, unlike `==`, tells 1, 1.0 and True apart.
    return repr(before) != repr(after) and _canonical(before) != _canonical(after)


def _canonical(value: Any) -> str:
    plain = value.model_dump() if hasattr(value, "model_dump") else value
    # Unlike what is stored, what was played just now may hold NaN, or an object that is no JSON.
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=repr)


def _excerpt(value: Any) -> str:
    content = value.get("content") if isinstance(value, dict) and "role" in value else value
    text = content if isinstance(content, str) else _canonical(content)
    return f"`{text[:120]}...`" if len(text) > 120 else f"`{text}`"
