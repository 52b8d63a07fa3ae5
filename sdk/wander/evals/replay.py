"""Replays a recorded run from its completions, or scores it again, and compares the result with the record.

A rollout of a deterministic environment is a pure function of environment version, arguments, example, seed
and completions. A replay must therefore give the same messages, metrics and reward, bit for bit. `COMPARED`
lists the fields that are compared. Times and token counts are not among them.

Failed rollouts are not compared, because the cause (an endpoint, a killed process) is not part of that
function. They count as `failed`, and a run with failed rollouts cannot get a higher level than `claimed`.

A difference counts only if it occurs twice. A rollout that fails during the replay does not count as
different: it is replayed up to twice more, with no other rollout in flight, and then counts as `undecided`.
If its process was lost or exceeded a limit, the rollout also counts as `unfinished`, because another replay
may get further.

If a rollout ran commands in a box (`wander.boxes`), their output may contain times or process ids. It is
equal if the commands left the same final state, with the same rewards. If they did not, and `highest` is
sought, the recorded final state is scored again.

If observations from outside enter the rollouts, nobody can replay them. In that case the rubric scores the
stored transcripts, with the answers of judges taken from the record, and `RESCORED` is compared. A rubric
that needs state which only a live rollout creates fails there, so these rollouts are undecided as well.
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

from wander.boxes.base import RECORD
from wander.clients.base import NOT_RECORDED, Client
from wander.clients.players import require_players
from wander.clients.replay import RecordClient, ReplayClient, TranscriptClient
from wander.errors import ConfigError, RunError
from wander.evals.replayed_boxes import without_output
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
"""Fields that must be equal in a replay, in the order of reported differences."""
RESCORED = ("seed", "answer", "failure", "reward", "metrics", "rewards", "player_metrics", "info")
"""Fields that must be equal when a transcript is scored again."""
_NOT_COMPARED = {
    *("name", "kind", "tags", "reference_scores"),  # pages read them from the environment
    *("arguments", "defaults"),  # compared by their effective values
}
"""Fields of the recorded environment info that need not equal those of the environment."""
TWICE = 64
"""Approximate number of rollouts that are also replayed in a second set of surroundings. Smaller runs are
replayed there completely. Once this many differences were confirmed, further differences count without
confirmation."""
TRIES = 3
"""Maximum number of attempts to replay a failing rollout."""
_MOST_LATER = 1024
"""Maximum number of rollouts (or groups) kept for a later retry. Further failures count immediately."""
_UNFINISHED = ("WorkerLost", "RolloutTimeout", "SandboxError", "WorkerUnreachable")
"""Failures without evidence about the rollout: its process was lost or stopped by a limit."""
SHOWN = 10_000
"""Maximum number of divergences listed in a report."""
_CHUNK = 256
"""Rollouts held in memory at a time if rewards do not compare the rollouts of a group."""
_UNPACKED = 10_000
"""Examples that are held uncompressed, which is faster than packing them."""
_BITS = 512

OnReplayed = Callable[[int, int], None]
"""Callback that receives the number of replayed rollouts and the number of different ones."""


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
    """Replay the rollouts of a run, or score them again, and compare them with the record.

    - `rollouts`: recorded rollouts, with each key at most once. They are read in chunks, so a long run needs
      little memory, unless reward functions compare the rollouts of a group.
    - `level`: the level to verify. `highest` replays deterministic environments and rescores all others.
    - `elsewhere`: the same environment in other surroundings (hash seed, clock...). Rollouts that differ are
      replayed there as well, so that the report can attribute the difference. About `TWICE` of the other
      rollouts, drawn at random, are also replayed there and must be equal.
    - `sample`: number of rollouts to replay (in whole groups), drawn with `sample_seed`.

    The report's `refused` says why a run cannot be compared: the environment declares that it is not
    deterministic, or its examples differ from the manifest. Raises `RunError` if a rollout is not part of the
    manifest.
    """
    started = time.monotonic()
    deterministic = environment.info.deterministic
    rescoring = level == "rescored" or (level == "highest" and not deterministic)
    method: Method = "rescore" if rescoring else "replay"
    report = ReplayReport.empty(manifest.run_id, manifest.expected_rollouts, method=method)
    replay = _Replay(environment, manifest, report, level, concurrency, on_replayed, elsewhere)
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
    report.divergences.sort(key=lambda divergence: (divergence.example_id, divergence.index))
    report.seconds = time.monotonic() - started
    return report


def first_difference(recorded: Rollout, again: Rollout) -> str | None:
    """Return a description of the first difference between two rollouts, or None if they are equal."""
    divergence = first_divergence(recorded, again)
    return None if divergence is None else divergence.difference


def first_divergence(
    recorded: Rollout, again: Rollout, compared: Sequence[str] = COMPARED
) -> Divergence | None:
    """Return the first divergence between two rollouts in the compared fields, or None if they are equal."""
    recorded_values, replayed_values = _values(recorded), _values(again)
    values = itemgetter(*compared)
    same = _written(values(recorded_values)) == _written(values(replayed_values))
    players = [turn.player for turn in recorded.turns], [turn.player for turn in again.turns]
    if same and players[0] == players[1]:
        return None

    differ_at = partial(_divergence, recorded)
    for name in compared:
        before, after = recorded_values[name], replayed_values[name]
        if isinstance(before, list) and isinstance(after, list):
            for number, (left, right) in enumerate(zip(before, after, strict=False)):
                if _differ(left, right):
                    difference = f"message {number} of the {name} is {_excerpt(right)}, not {_excerpt(left)}"
                    return differ_at(name, difference, number)
            if len(before) != len(after):
                difference = f"the {name} has {len(after)} messages, not {len(before)}"
                return differ_at(name, difference, min(len(before), len(after)))
        elif _differ(before, after):
            return differ_at(name, f"the {name} is {_excerpt(after)}, not {_excerpt(before)}")
    if len(recorded.turns) != len(again.turns):
        return differ_at("turns", f"the rollout has {len(again.turns)} turns, not {len(recorded.turns)}")
    if players[0] != players[1]:
        return differ_at(
            "turns", f"the players of the turns are {_excerpt(players[1])}, not {_excerpt(players[0])}"
        )
    return None


class _Undecided(NamedTuple):
    """A rollout whose replay showed neither that it is equal nor that it differs."""

    reason: str
    unfinished: bool = False


class _Weaker(NamedTuple):
    """A rollout whose commands printed something else, or whose final state could only be rescored."""

    rescored: bool


_Outcome = Divergence | _Undecided | _Weaker | None
"""Outcome of a replayed rollout: a divergence, undecided, weaker evidence, or None if it is equal."""


def _values(rollout: Rollout) -> dict[str, Any]:
    """Return the fields of a rollout. Judges' answers are sorted, because their order depends on latency."""
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
    level: LevelSought
    concurrency: int
    on_replayed: OnReplayed | None
    elsewhere: EnvironmentHandle | None = None
    other_stratum: str | None = None
    """First example whose stratum differs from the manifest, or None."""
    later: list[list[Rollout]] = field(default_factory=list)
    """Rollouts (by group) that failed and are replayed again at the end."""
    seen: dict[int, int] = field(default_factory=dict)
    """Bit set of the rollouts seen so far, with `_BITS` of them per integer."""

    def __post_init__(self) -> None:
        ids, exhaustive = self.manifest.example_ids, self.manifest.kind == "exhaustive"
        most = self.manifest.expected_rollouts if exhaustive else self.manifest.rollouts_per_example
        self.examples, self.order = PackedExamples(unpacked=_UNPACKED), RolloutOrder(ids, most)
        self.most, self.at = most, array("q", [-1]) * len(ids)
        """Position in `examples` of each example in the manifest, or -1 if the environment does not have
        it."""
        self.share = TWICE / max(1, self.manifest.expected_rollouts)
        self.draw = SystemRandom()
        self.others = self.manifest.players.keys() - self.manifest.scripts.keys()
        """Players other than the model and the scripts."""

    async def read_examples(self) -> None:
        """Read the manifest's examples from the environment, as far as it has them."""
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
        """Return the example with this id, which must be in the manifest and the environment."""
        place = self.order.find((name, 0))
        assert place is not None
        return self.examples[self.at[place // self.most]]

    def contradiction(self) -> str | None:
        """Return how the manifest contradicts the environment, or None."""
        stated, actual = self.manifest.environment.info, self.environment.info
        if stated.reward_bounds is None and not any(function.bounds for function in stated.reward_functions):
            # A run may omit the bounds. The hub then uses those of the environment.
            actual = actual.model_copy(
                update={
                    "reward_bounds": None,
                    "reward_functions": [
                        function.model_copy(update={"bounds": None}) for function in actual.reward_functions
                    ],
                }
            )
        if stated.view is None:  # in that case no page renders a view
            actual = actual.model_copy(update={"view": None})
        for name in EnvironmentInfo.model_fields:
            if name not in _NOT_COMPARED and getattr(stated, name) != getattr(actual, name):
                return f"the run records a different `{name}` than the environment has"
        pin = self.manifest.environment
        if pin.changed_arguments != pin.model_copy(update={"info": self.environment.info}).changed_arguments:
            return "the run records different argument defaults than the environment has"
        try:
            require_players(self.environment.info, self.manifest.players)
        except ConfigError as error:
            return str(error)
        if -1 in self.at:
            missing = self.manifest.example_ids[self.at.index(-1)]
            return f"`{self.environment.info.name}` has no example `{missing}`"
        if self.examples.digest_in_order(self.at) != self.manifest.task_set_sha256:
            return "the examples differ from those of the run: their digest is different"
        if self.other_stratum is not None:
            return f"the run records a different stratum for the example `{self.other_stratum}`"
        return None

    async def add(
        self,
        rollouts: Sequence[Rollout],
        chosen: set[tuple[str, int]] | None,
    ) -> None:
        """Add the next rollouts of the run to the report, and replay those in `chosen` (None: all)."""
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
            raise RunError(f"rollout `{rollout.example_id}/{rollout.index}` occurs twice in the run")
        self.seen[number] = self.seen.get(number, 0) | bit

    def client_of(self, recorded: Sequence[Rollout]) -> RecordClient:
        """Return the client that answers with the recorded completions."""
        name = self.manifest.model.name
        if self.report.method == "rescore":
            return TranscriptClient(recorded, name)
        lines = self.manifest.kind == "exhaustive"
        return ReplayClient(recorded, name, lines=lines, scripts=self.manifest.scripts)

    async def add_later(self) -> None:
        """Replay the failed rollouts again, one at a time, so that they cannot disturb each other."""
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
        """Replay rollouts, some of them also in other surroundings, and confirm differences."""
        sure = self.report.differing >= TWICE
        outcomes = await self._look(self.environment, client, example, recorded, sure=sure)
        if any(isinstance(outcome, _Undecided) for outcome in outcomes):
            return outcomes
        if self.elsewhere is not None and not sure and (any(outcomes) or self.draw.random() < self.share):
            elsewhere = await self._look(self.elsewhere, client, example, recorded, sure=sure)
            self.report.twice += len(elsewhere)
            outcomes = [_attribute(*pair) for pair in zip(outcomes, elsewhere, strict=True)]
        if self.level == "highest" and any(map(_differs_in_a_box, outcomes)):
            transcripts = TranscriptClient(recorded, self.manifest.model.name)
            scored = await self._look(self.environment, transcripts, example, recorded, sure=sure)
            outcomes = [_settle(*pair) for pair in zip(outcomes, scored, strict=True)]
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
        """Replay rollouts in one process.

        Unless `sure`, a difference counts only if it occurs twice there.
        """

        async def play() -> list[_Outcome]:
            again = await self._play(environment, client, example, recorded)
            return [self._judge(*pair, client) for pair in zip(recorded, again, strict=True)]

        outcomes = await play()
        if sure or not any(isinstance(outcome, Divergence) for outcome in outcomes):
            return outcomes
        return [_confirm(*pair) for pair in zip(outcomes, await play(), strict=True)]

    def _keep(self, recorded: list[Rollout], outcomes: Sequence[_Outcome]) -> None:
        """Count the outcomes of some rollouts."""
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
            elif isinstance(outcome, _Weaker):
                report.rescored += outcome.rescored
                report.other_output += not outcome.rescored
            elif outcome is not None:
                report.differing += 1
                if len(report.divergences) < SHOWN:
                    report.divergences.append(outcome)
        if self.on_replayed is not None:
            self.on_replayed(report.replayed, report.differing)

    def _was_answered(self, recorded: Rollout, judged: bool) -> bool:
        """Return whether the record answered for a judge, or the run has a player that is another model.

        Nobody can reproduce such a player, so it counts even if it never had to move.
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
        """Return the divergence, the reason why no decision is possible, or None if the rollout is equal."""
        failure, rescoring = again.failure, isinstance(client, TranscriptClient)
        missing = client.missing.pop(f"{recorded.example_id}/{recorded.index}", None)
        if missing is None and failure is not None and failure.type == NOT_RECORDED:
            missing = failure.message
        if missing is not None:
            return _divergence(recorded, "failure", missing)
        if failure is not None:
            unfinished = failure.type in _UNFINISHED or failure.boundary == "sandbox"
            return _Undecided(failure.message, unfinished)
        if not rescoring:
            divergence = first_divergence(recorded, again)
            if divergence is None or RECORD not in again.info:
                return divergence
            differs = first_divergence(without_output(recorded), without_output(again))
            return _Weaker(rescored=False) if differs is None else differs.model_copy(update={"in_box": True})
        spoken = sum(message.get("role") == "assistant" for message in recorded.completion)
        if len(recorded.turns) > spoken:
            return _Undecided(f"the record has {len(recorded.turns)} turns, but {spoken} model messages")
        # Scoring a transcript does not repeat the calls that the environment made to other models.
        played = recorded.model_copy(update={"info": _without_calls(recorded)})
        scored = again.model_copy(update={"info": _without_calls(again)})
        return first_divergence(played, scored, RESCORED)


def _without_calls(rollout: Rollout) -> dict[str, Any]:
    return {name: value for name, value in rollout.info.items() if name != OUTSIDE_CALLS}


def _differs_in_a_box(outcome: _Outcome) -> bool:
    return isinstance(outcome, Divergence) and outcome.in_box


def _settle(replayed: _Outcome, scored: _Outcome) -> _Outcome:
    """Return the outcome of a rollout that differed in a box when it was replayed, and was then rescored."""
    if not _differs_in_a_box(replayed):
        return replayed
    if isinstance(scored, _Undecided) and not scored.unfinished:
        return replayed  # the recorded final state cannot be scored at all
    return _Weaker(rescored=True) if scored is None else scored


def _was_judged(recorded: Rollout) -> bool:
    """Return whether the record answered for a judge. A judge that is a script is run again instead."""
    answers = recorded.info.get(JUDGE_ANSWERS)
    return isinstance(answers, list) and not all(
        isinstance(answer, dict) and answer.get(SCRIPTED) for answer in answers
    )


def _confirm(first: _Outcome, second: _Outcome) -> _Outcome:
    """Return the outcome of a rollout that was replayed twice in one process."""
    if not isinstance(first, Divergence):
        return first
    if second is None:
        return _Undecided(f"{first.difference}, but it was equal when it was replayed again")
    return first if isinstance(second, Divergence) else second


def _attribute(here: _Outcome, there: _Outcome) -> _Outcome:
    """Combine the outcomes of a rollout in two processes. A difference in only one of them is attributed."""
    if isinstance(there, _Undecided):
        return there
    if isinstance(here, _Undecided) or (here is None) == (there is None):
        return here
    divergence = here or there
    if not isinstance(divergence, Divergence):
        return divergence
    why = "only under some hash seeds, clocks, time zones, locales or host names"
    return divergence.model_copy(update={"difference": f"{divergence.difference} ({why})"})


async def _read_examples(environment: EnvironmentHandle, manifest: RunManifest) -> AsyncIterator[Example]:
    """Yield the examples of the manifest's split, in the same pages that the evaluation requested.

    An environment that counts its requests therefore cannot recognize a replay. From an endless split, no
    more examples are generated than the run names.
    """
    if manifest.kind == "exhaustive":
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
    """Draw the keys to replay, in whole groups if rewards compare them. None means all."""
    if size is None or size >= manifest.expected_rollouts or manifest.kind == "exhaustive":
        return None  # only the rollouts know the keys of lines
    numbers = range(manifest.rollouts_per_example)
    draw = derived_rng(seed, "replayed sample", manifest.run_id)
    if groups:
        names = draw.sample(manifest.example_ids, max(1, size // manifest.rollouts_per_example))
        return {(name, index) for name in names for index in numbers}
    # Drawn by number, because a manifest may name more rollouts than memory can hold.
    keys = draw.sample(range(len(manifest.example_ids) * len(numbers)), size)
    return {(manifest.example_ids[key // len(numbers)], key % len(numbers)) for key in keys}


def _written(values: tuple[Any, ...]) -> bytes | str:
    """Serialize values such that equal values give equal results, while 1, 1.0 and True differ."""
    try:
        return marshal.dumps(
            values, 2
        )  # four times faster than `repr`; later versions distinguish copies from references
    except ValueError:
        return repr(values)


def _differ(before: Any, after: Any) -> bool:
    # Most values are equal. Unlike `==`, `repr` distinguishes 1, 1.0 and True.
    return repr(before) != repr(after) and _canonical(before) != _canonical(after)


def _canonical(value: Any) -> str:
    plain = value.model_dump() if hasattr(value, "model_dump") else value
    # Unlike stored values, replayed values may contain NaN or objects that JSON cannot represent.
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=repr)


def _excerpt(value: Any) -> str:
    content = value.get("content") if isinstance(value, dict) and "role" in value else value
    text = content if isinstance(content, str) else _canonical(content)
    return f"`{text[:120]}...`" if len(text) > 120 else f"`{text}`"
