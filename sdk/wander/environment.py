"""Environments: a dataset, the rules for playing an example, and a rubric.

The behavior of an environment in a rollout depends only on its arguments, the example, the run's seed and the
model's completions. Randomness comes from `self.rng(state, ...)`. Two rollouts that reach the same position
therefore meet the same reply, and a stored rollout can be replayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

from wander.clients.base import RolloutHost
from wander.clients.choices import choose
from wander.clients.scripted import ScriptedClient, scripted_client_from_spec
from wander.dataset import Dataset, ProceduralRows, Rows
from wander.errors import (
    BoundaryError,
    ConfigError,
    ContextOverflow,
    DatasetError,
    EnvironmentFault,
    ModelError,
    RubricError,
    WanderError,
    did_you_mean,
)
from wander.handle import EnvironmentHandle, RolloutPlayer, RolloutRequest, Split
from wander.loop_thread import LoopThread
from wander.parsers import Parser
from wander.rollout.activity import ACTIVITY, PLAY, Activity, Notices, SilenceWatch, at
from wander.rollout.calls import ModelCalls
from wander.rollout.faults import blame
from wander.rollout.hooks import CLEANUP, TEARDOWN, call_every, call_hook, find_marked
from wander.rollout.json_values import as_json
from wander.rollout.states import as_seen_by, restore
from wander.rubrics import Rubric, Score
from wander.rubrics.gold import script_of
from wander.rubrics.reward_function import check_bounds
from wander.seeding import Key, derived_rng
from wander.types import (
    EnvironmentInfo,
    Example,
    GridView,
    Messages,
    Rollout,
    State,
    TableView,
    Usage,
    canonical_json,
    copy_json,
)

Option = TypeVar("Option")


class Environment(RolloutPlayer):
    """Base of every environment; authors subclass `SingleTurnEnv` or `MultiTurnEnv`.

    - `dataset`, `eval_dataset`: rows (see `wander.dataset`). One of them is enough; it is then used for both
      splits.
    - `system_prompt`, `few_shot`: messages before the question of rows without a `prompt` column. `few_shot`
      is a list of messages, or the number of examples of the train split to show as played by `gold`.
    - `seed`: seed for examples without a `seed` column.
    - `deterministic`: False declares that outside observations enter the rollouts.
    - `strata`: number of strata in the `stratum` column, or the name of another column that contains the
      stratum as a whole number from 0.
    - `reference_scores`: mean rewards for comparison, by name.
    - `reward_bounds`: lowest and highest possible reward, which `wander check` verifies. By default they
      follow from the weights, with every reward function between 0 and 1.
    - `view`: description of how pages draw the state in its messages.

    Raises `DatasetError` without a dataset, and `TypeError` for unknown arguments.
    """

    kind: ClassVar[str] = "environment"
    players: Sequence[str] = ()
    """Players of a rollout, the run's model first; empty in an environment with a single player."""
    _players: tuple[str, ...] = ()
    """Copy of `players` from creation, because subclasses may use that name for other purposes."""

    def __init__(
        self,
        dataset: Rows | ProceduralRows | None = None,
        eval_dataset: Rows | ProceduralRows | None = None,
        system_prompt: str | None = None,
        few_shot: Messages | int | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        *,
        seed: int = 0,
        name: str | None = None,
        summary: str = "",
        tags: Sequence[str] = (),
        deterministic: bool = True,
        strata: int | str | None = None,
        reference_scores: Mapping[str, float] | None = None,
        reward_bounds: tuple[float, float] | None = None,
        view: GridView | TableView | None = None,
        **unknown: Any,
    ) -> None:
        _refuse_unknown(type(self), unknown)
        self.rubric = rubric or Rubric()
        self.parser = parser or self.rubric.parser or Parser()
        self.system_prompt = system_prompt
        self.few_shot = None if isinstance(few_shot, int) else few_shot
        self._examples_to_show = few_shot if isinstance(few_shot, int) else 0
        self._shown: tuple[list[Messages], int] = ([], 0)
        """Conversations of the examples to show, and the number of them for each question."""
        if self._examples_to_show < 0:
            raise ConfigError(f"cannot show `{few_shot}` examples", hint="pass 0 or more")
        self.seed = seed
        self.name = name
        self.summary = summary
        self.tags = list(tags)
        self.deterministic = deterministic
        self.strata = strata
        self.reference_scores = dict(reference_scores or {})
        self.reward_bounds = check_bounds(reward_bounds, "`reward_bounds`")
        self.view = view
        self.arguments: dict[str, Any] = {}
        self.argument_defaults: dict[str, Any] = {}
        """Default values of the arguments of `load_environment`. The loader sets these and `arguments`."""
        self._datasets = self._bind_datasets(dataset, eval_dataset)
        self._cleanups = find_marked(self, CLEANUP)
        self._scripts: dict[str, ScriptedClient] = {}
        """Players that functions of this package play, as loaded so far."""

    def _bind_datasets(
        self, dataset: Rows | ProceduralRows | None, eval_dataset: Rows | ProceduralRows | None
    ) -> dict[Split, Dataset]:
        """Create the datasets of the given splits."""
        given: list[tuple[Split, Any]] = [("train", dataset), ("eval", eval_dataset)]
        column = self.strata if isinstance(self.strata, str) else "stratum"
        bound: dict[Split, Dataset] = {
            split: Dataset(
                rows,
                split=split,
                seed=self.seed,
                system_prompt=self.system_prompt,
                few_shot=self.few_shot,
                stratum_column=column,
            )
            for split, rows in given
            if rows is not None
        }
        if not bound:
            raise DatasetError(
                f"`{type(self).__name__}` has no dataset", hint="pass `dataset=` or `eval_dataset=`"
            )
        return bound

    def dataset(self, split: Split = "train") -> Dataset:
        """Return the dataset of a split, or of the other split if the environment does not have this one."""
        if self._examples_to_show:
            count, self._examples_to_show = self._examples_to_show, 0
            try:
                self._show_examples(count)
            except BaseException:
                self._examples_to_show = count  # so that the next call raises the same error
                raise
        return self._datasets.get(split) or next(iter(self._datasets.values()))

    def use_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace the rows of the evaluation split, for example by those of a sealed task set.

        Call this before the first example is read. Raises `ConfigError` for an environment that builds its
        examples from something else than rows.
        """
        if type(self)._bind_datasets is not Environment._bind_datasets:
            raise ConfigError(
                f"`{self.name or type(self).__name__}` does not take its examples from rows",
                hint="use an environment that passes `dataset=` or `eval_dataset=` to its base class",
            )
        self._datasets |= self._bind_datasets(None, rows)

    def _show_examples(self, count: int) -> None:
        """Show the first examples of the train split, as played by `gold`, before every question."""
        # Get an additional example, to show in place of an example that would reveal its own answer.
        source = self.dataset("train")
        chosen = source.examples(0, count + 1)
        # Use a separate loop, because callers of `dataset` cannot await, and some run on an event loop.
        loop = LoopThread("wander-examples")
        try:
            shown = loop.run(self._play_gold(chosen))
        finally:
            loop.close()
        self._shown = (shown, count)
        for dataset in self._datasets.values():
            dataset.show(shown, count, own=dataset is source)

    async def _play_gold(self, examples: Sequence[Example]) -> list[Messages]:
        """Return the conversations in which `gold` answers the examples."""
        shown: list[Messages] = []
        for example in examples:
            gold = script_of(self.gold(example), example, self.parser, self.turn_limit, self._players)
            if gold is None or self._players:
                raise ConfigError(
                    f"`{type(self).__name__}` has no `gold` completions of a single player to show",
                    hint="override `gold`, or pass the messages themselves as `few_shot`",
                )
            request = RolloutRequest.of(ScriptedClient(gold), example, [0], together=False)
            host = RolloutHost(request.client, request.rollout_ids[0])
            try:
                state = (await self._play_one_episode(request, 0, request.rollout_ids[0], host)).state
            finally:
                await host.stop_boxes()
            if state["failure"] is not None:
                raise ConfigError(
                    f"example `{example.example_id}` cannot be shown: {state['failure'].message}"
                )
            question = [message for message in state["prompt"] if message["role"] != "system"]
            shown.append([*question, *state["completion"]])
        return shown

    @property
    def info(self) -> EnvironmentInfo:
        """Facts about the environment."""
        lengths = {split: dataset.length for split, dataset in self._datasets.items()}
        return EnvironmentInfo(
            name=self.name or type(self).__name__,
            kind=self.kind,
            summary=self.summary,
            tags=self.tags,
            reward_functions=self.rubric.describe(),
            reward_bounds=self.reward_bounds,
            max_turns=self.turn_limit,
            timeout_seconds=self.time_limit,
            deterministic=self.deterministic,
            group_rewards=self.rubric.has_group_functions,
            train_examples=lengths.get("train", lengths.get("eval")),
            eval_examples=lengths.get("eval", lengths.get("train")),
            strata=self._count_strata(),
            reference_scores=self.reference_scores,
            arguments=self.arguments,
            defaults=self.argument_defaults,
            players=list(self._players),
            view=self.view,
        )

    @property
    def turn_limit(self) -> int | None:
        """Maximum number of turns in a rollout, or None."""
        return None

    @property
    def time_limit(self) -> float | None:
        """Seconds after which a rollout ends, or None."""
        return None

    def _count_strata(self) -> int | None:
        if not isinstance(self.strata, str):
            return self.strata
        dataset = self.dataset("train")
        if dataset.length is None:
            raise ConfigError(
                f"cannot count the strata of an endless dataset in column `{self.strata}`",
                hint="put the stratum in the `stratum` column and pass their number as `strata`",
            )
        examples = (dataset.examples(index, 1, keep_faulty=True) for index in range(dataset.length))
        return 1 + max((example.stratum or 0 for (example,) in examples), default=-1)

    def gold(self, example: Example) -> Any:
        """Return completions that earn a high reward: a text, a list with a text per turn, or a script.

        A script is a function from `ModelRequest` to a reply, as for `ScriptedClient`. With several players,
        return a dictionary by player. None stands for the answer in the format of the parser.
        """
        return None

    def rng(self, state: State, *keys: Key) -> random.Random:
        """Return a new generator that depends only on the run's seed, the example's seed and the keys.

        Describe the situation in the keys: `self.rng(state, "opponent", board)`.
        """
        return derived_rng(state.run_seed, state.example.seed, *keys)

    def openings(self) -> Rows | None:
        """Return rows for all possible initial positions of an episode, or None.

        If an environment returns rows and makes all of its choices with `choose`, an exhaustive evaluation
        can play every reply that it could give.
        """
        return None

    def opening_examples(self) -> list[Example]:
        """Return the examples of `openings`; empty if the environment does not declare any."""
        if (rows := self.openings()) is None:
            return []
        self.dataset()  # plays the examples to show
        bound = Dataset(
            rows, split="eval", seed=self.seed, system_prompt=self.system_prompt, few_shot=self.few_shot
        )
        bound.show(*self._shown)
        return bound.examples(0, None)

    def choose(self, state: State, options: Sequence[Option], drawn: Callable[[], Option]) -> Option:
        """Return the environment's choice: `drawn()`, or in an exhaustive evaluation each option in turn.

        `options` are all possible results of `drawn`, as JSON values in a fixed order: `self.choose(state,
        moves, lambda: self.rng(state, board).choice(moves))`.
        """
        return choose(state, options, drawn)

    def init_state(self, example: Example, *, index: int = 0, run_seed: int = 0) -> State:
        """Return the initial state of a rollout of the example; it shares no objects with the example."""
        own = Example.assemble(**copy_json(vars(example)))
        return State(
            example=own,
            prompt=copy_json(example.prompt),
            completion=[],
            answer=copy_json(example.answer),
            info=copy_json(example.info),
            turns=[],
            run_seed=run_seed,
            index=index,
            stop_reason=None,
            truncated=False,
            reward=None,
            metrics={},
            rewards={},
            player_metrics={},
            failure=None,
            public={},
        )

    @abstractmethod
    async def play(self, state: State, model: ModelCalls) -> None:
        """Play the episode to its end: fill `completion` and `turns` and set `stop_reason`.

        An exception becomes the failure of the rollout.
        """

    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Play an episode for each index concurrently and score them, together if the request asks for it.

        Failed rollouts are not scored, so they are left out of a group that is scored together.
        """
        hosts = [RolloutHost(request.client, rollout_id) for rollout_id in request.rollout_ids]
        try:
            return await self._play_and_score(request, hosts)
        finally:
            for host in hosts:
                await host.stop_boxes()

    async def _play_and_score(self, request: RolloutRequest, hosts: Sequence[RolloutHost]) -> list[Rollout]:
        trios = zip(request.indices, request.rollout_ids, hosts, strict=True)
        if len(request.indices) == 1:  # avoids the cost of a separate task
            episodes = [await self._play_one_episode(request, *trio) for trio in trios]
        else:
            episodes = await asyncio.gather(*(self._play_one_episode(request, *trio) for trio in trios))
        scoring = time.perf_counter()
        played = [episode.state for episode in episodes if episode.state["failure"] is None]
        if request.together and self.rubric.has_group_functions:
            await self._score_states(played, together=True)
        else:
            for state in played:
                await self._score_states([state], together=False)
        seconds = (time.perf_counter() - scoring) / max(1, len(episodes))
        return [episode.record(scoring_seconds=seconds) for episode in episodes]

    async def _play_one_episode(
        self, request: RolloutRequest, index: int, rollout_id: str, host: RolloutHost
    ) -> _Episode:
        """Play an episode to its end without scoring it."""
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        started = time.perf_counter()
        state = self.init_state(request.example, index=index, run_seed=request.run_seed)
        state["host"] = host
        if (transcript := request.client.transcript(rollout_id)) is not None:
            restore(state, transcript)
            return _Episode(state, started_at, 0.0)
        try:
            calls = ModelCalls(request.client, state, request.sampling, rollout_id, self._scripted(request))
        except BoundaryError as error:
            _fail(state, error)
            return _Episode(state, started_at, 0.0)
        try:
            await self._begin_and_play(state, calls)
        finally:
            try:
                calls.end()
            except ModelError as error:
                _fail(state, error)
            await self._run_cleanup_hooks(state)
        return _Episode(state, started_at, max(0.0, time.perf_counter() - started - calls.waited))

    def _scripted(self, request: RolloutRequest) -> dict[str, ScriptedClient]:
        """Return the players that the request leaves to functions of this environment's package."""
        if not (scripts := request.client.scripts):
            return {}
        try:
            for spec in set(scripts.values()) - self._scripts.keys():
                self._scripts[spec] = scripted_client_from_spec(spec, package=type(self).__module__)
        except WanderError as error:
            raise ModelError(str(error), hint=error.hint) from error
        return {player: self._scripts[spec] for player, spec in scripts.items()}

    async def _begin_and_play(self, state: State, calls: ModelCalls) -> None:
        """Notify the client of the rollout, play it, and record its failure, if any."""
        try:
            try:
                calls.begin()
                await self.play(state, calls)
            except BaseException as error:
                blame(error, EnvironmentFault, "play", passing=BoundaryError)
                raise
        except ContextOverflow:
            state["truncated"] = True
            state["stop_reason"] = "context_overflow"
        except BoundaryError as error:
            _fail(state, error)

    async def _run_cleanup_hooks(self, state: State) -> None:
        """Run all cleanup hooks, even if some of them fail; only the first failure is recorded."""
        for _, hook in self._cleanups:
            try:
                await call_hook(hook, state)
            except BoundaryError as error:
                _fail(state, error)

    async def _score_states(self, states: Sequence[State], *, together: bool) -> None:
        """Score a rollout, or a group together, from each player's view; all fail if scoring fails."""
        for player in self._players or (None,):
            seen = states if player is None else [as_seen_by(player, state) for state in states]
            for state, score in zip(states, await self._scores(seen, together=together), strict=True):
                if player is not None and score.reward is not None:
                    state["rewards"][player] = score.reward
                if player is None or player == self._players[0]:
                    state["reward"], state["metrics"] = score.reward, score.metrics
                else:
                    state["player_metrics"][player] = score.metrics
                if score.error is not None and state["failure"] is None:
                    state["failure"] = score.error.failure()

    async def _scores(self, states: Sequence[State], *, together: bool) -> list[Score]:
        place = "score_group" if together else "score"
        try:
            try:  # a rubric's own `score` or `score_group` may raise anything
                with at(place):
                    if together:
                        scores = await self.rubric.score_group(states, self.parser)
                    else:
                        scores = [await self.rubric.score(state, self.parser) for state in states]
            except BaseException as error:
                blame(error, RubricError, place)
                raise
        except RubricError as error:
            return [Score(reward=None, error=error) for _ in states]
        return [score.require_finite() for score in scores]

    async def teardown(self) -> None:
        """Run the hooks marked with `@teardown`, then close the rubric.

        Raises the first `EnvironmentFault` after all hooks have run.
        """
        hooks = [hook for _, hook in find_marked(self, TEARDOWN)]
        await call_every([*hooks, self.rubric.close])


class LocalEnvironment(EnvironmentHandle):
    """An environment in this process, with the interface for hosts (`wander.handle.EnvironmentHandle`)."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self._watch: SilenceWatch | None = None
        self._scoring_seconds = 0.0

    def report_silence(self, notices: Notices) -> None:
        """Report code that blocks for too long, from now on."""
        self._watch = SilenceWatch(notices)

    @cached_property
    def info(self) -> EnvironmentInfo:
        """Facts about the environment."""
        return self.env.info

    @property
    def lost_reason(self) -> None:
        """None, because the environment lives as long as this process."""
        return None

    @property
    def scoring_seconds(self) -> float:
        """Total seconds that synchronous reward functions blocked this process."""
        return self._scoring_seconds

    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        """Return `count` examples from index `start` in the stored order; None means all others."""
        with self._watched(None, f"{split} dataset"):
            return self.env.dataset(split).examples(start, count, keep_faulty=True)

    async def openings(self) -> list[Example]:
        """Return an example for every opening; empty if the environment does not declare any."""
        return self.env.opening_examples()

    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Play and score the request; failures are recorded in the rollouts."""
        with self._watched(request.example.example_id):
            return await request.send(self.env)

    async def close(self) -> None:
        """Run the environment's teardown."""
        try:
            with self._watched(None, TEARDOWN):
                await self.env.teardown()
        finally:
            if self._watch is not None:
                self._watch.stop()

    @contextlib.contextmanager
    def _watched(self, example_id: str | None, place: str = PLAY) -> Iterator[None]:
        """Report code in the block that does not return, and add up its scoring time."""
        activity, watch = Activity(example_id, place), self._watch
        token = ACTIVITY.set(activity)
        if watch is not None:
            watch.add(activity)
        try:
            yield
        finally:
            self._scoring_seconds += activity.scoring_seconds
            if watch is not None:
                watch.remove(activity)
            ACTIVITY.reset(token)


def _fail(state: State, error: BoundaryError) -> None:
    """Record the first failure of a rollout and clear its stop reason."""
    if state["failure"] is None:
        state["failure"] = error.failure()
        state["stop_reason"] = None


class _Episode(NamedTuple):
    """A rollout that was played but not yet recorded."""

    state: State
    started_at: str
    seconds: float
    """Seconds of play."""

    def record(self, scoring_seconds: float) -> Rollout:
        """Return the finished rollout. It is not validated, because all values come from this module."""
        state = self.state
        failure, public = state["failure"], state["public"]
        try:
            if public != {}:
                public = as_json(public)
                canonical_json(public)
        except (TypeError, ValueError) as error:
            fault = EnvironmentFault(f'`state["public"]` is not a JSON value: {error}')
            failure, public = failure or fault.failure(), {}
        example = state.example
        return Rollout.assemble(
            example_id=example.example_id,
            index=state["index"],
            seed=example.seed,
            prompt=state.prompt,
            completion=state.completion,
            turns=state.turns,
            answer=example.answer,
            stop_reason=state["stop_reason"],
            truncated=state["truncated"],
            reward=None if failure else state["reward"],
            metrics=state["metrics"],
            failure=failure,
            usage=sum((turn.usage for turn in state.turns), Usage()),
            started_at=self.started_at,
            seconds=self.seconds + scoring_seconds,
            scoring_seconds=scoring_seconds,
            info=public,
            tools=state.get("tools_offered"),
            step=None,
            rewards={} if failure else state["rewards"],
            player_metrics={} if failure else state["player_metrics"],
        )


def _refuse_unknown(cls: type[Environment], unknown: Mapping[str, Any]) -> None:
    """Raise `TypeError` for the first unknown argument, with a suggestion."""
    if not unknown:
        return
    name = next(iter(unknown))
    accepted = [key for key in inspect.signature(Environment).parameters if key != "unknown"]
    advice = did_you_mean(name, accepted) or f"it accepts {', '.join(accepted)}"
    raise TypeError(f"`{cls.__name__}` got the unknown argument `{name}`; {advice}")
