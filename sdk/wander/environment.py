"""The environment: a dataset, a way to play an example, and a rubric.

Everything that an environment does in a rollout depends only on its arguments, the example, the run's seed
and the model's completions. Randomness comes from `self.rng(state, ...)`; then two rollouts that reach the
same position meet the same reply, and a stored rollout can be replayed.
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

from wander.clients.base import RolloutHost, Transcript
from wander.clients.choices import PENDING, ChoicePending, choose
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
from wander.handle import EnvironmentHandle, Player, RolloutRequest, Split
from wander.loop_thread import LoopThread
from wander.parsers import Parser
from wander.rollout.activity import ACTIVITY, PLAY, Activity, Notices, SilenceWatch, at
from wander.rollout.calls import ModelCalls
from wander.rollout.faults import blame
from wander.rollout.hooks import CLEANUP, TEARDOWN, call_every, call_hook, find_marked
from wander.rollout.json_values import as_json
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
    seen_by,
)

Option = TypeVar("Option")


class Environment(Player):
    """Base of every environment; authors subclass `SingleTurnEnv` or `MultiTurnEnv`.

    - `dataset`, `eval_dataset`: rows (see `wander.dataset`); one of the two is enough, and a split that is
      missing falls back to the other.
    - `system_prompt`, `few_shot`: put before the question of rows that have no `prompt` of their own.
      `few_shot` is messages, or how many examples of the train split to show as `gold` plays them.
    - `seed`: seeds the examples that have no `seed` column.
    - `deterministic`: False declares that outside observations enter the rollouts.
    - `strata`: how many strata the `stratum` column distinguishes, or the name of another column that holds
      the stratum as a whole number from 0.
    - `reference_scores`: mean rewards that readers can compare with, by name.
    - `reward_bounds`: lowest and highest reward there can be; `wander check` holds the rubric to them. Unless
      given, they follow from the weights, with every reward function between 0 and 1.
    - `view`: how pages draw the state that its messages show.

    Raises `DatasetError` without any dataset and `TypeError` for unknown arguments.
    """

    kind: ClassVar[str] = "environment"
    players: Sequence[str] = ()
    """Who takes turns in a rollout, the run's model first; empty where that one is alone."""
    _players: tuple[str, ...] = ()
    """The same, as it was when the environment was made: authors have had a `players` of their own."""

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
        """The examples that were played to be shown, and how many of them each question gets."""
        if self._examples_to_show < 0:
            raise ConfigError(f"`{few_shot}` examples cannot be shown", hint="give 0 or more")
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
        """The arguments of `load_environment`, and their default values; the loader fills in both."""
        self._datasets = self._bind_datasets(dataset, eval_dataset)
        self._cleanups = find_marked(self, CLEANUP)
        self._scripts: dict[str, ScriptedClient] = {}
        """Who plays by a function of this package, as far as they have been asked for."""

    def _bind_datasets(
        self, dataset: Rows | ProceduralRows | None, eval_dataset: Rows | ProceduralRows | None
    ) -> dict[Split, Dataset]:
        """Bind the given rows to their splits."""
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
        """Return the examples of a split, or those of the other one when the environment lacks it."""
        if self._examples_to_show:
            count, self._examples_to_show = self._examples_to_show, 0
            try:
                self._show_examples(count)
            except BaseException:
                self._examples_to_show = count  # whoever asks again is told again
                raise
        return self._datasets.get(split) or next(iter(self._datasets.values()))

    def _show_examples(self, count: int) -> None:
        """Put the first examples of the train split, as `gold` plays them, before every question."""
        # One more: it stands in where an example would be shown its own answer.
        source = self.dataset("train")
        chosen = source.examples(0, count + 1)
        # Datasets are asked for by functions that cannot wait, on event loops too.
        loop = LoopThread("wander-examples")
        try:
            shown = loop.run(self._play_gold(chosen))
        finally:
            loop.close()
        self._shown = (shown, count)
        for dataset in self._datasets.values():
            dataset.show(shown, count, own=dataset is source)

    async def _play_gold(self, examples: Sequence[Example]) -> list[Messages]:
        """Return the conversations in which `gold` plays the examples."""
        shown: list[Messages] = []
        for example in examples:
            gold = script_of(self.gold(example), example, self.parser, self.turn_limit, self._players)
            if gold is None or self._players:
                raise ConfigError(
                    f"`{type(self).__name__}` does not say how one player plays its examples right",
                    hint="override `gold`, or pass the messages themselves as `few_shot`",
                )
            request = RolloutRequest.of(ScriptedClient(gold), example, [0], together=False)
            state = (await self._play_one_episode(request, 0, request.rollout_ids[0])).state
            if state["failure"] is not None:
                raise ConfigError(
                    f"example `{example.example_id}` cannot be shown: {state['failure'].message}"
                )
            asked = [each for each in state["prompt"] if each["role"] != "system"]
            shown.append([*asked, *state["completion"]])
        return shown

    @property
    def info(self) -> EnvironmentInfo:
        """What the environment says about itself."""
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
        """The most turns that a rollout may take, or None."""
        return None

    @property
    def time_limit(self) -> float | None:
        """The seconds after which a rollout ends, or None."""
        return None

    def _count_strata(self) -> int | None:
        if not isinstance(self.strata, str):
            return self.strata
        dataset = self.dataset("train")
        if dataset.length is None:
            raise ConfigError(
                f"the strata of an endless dataset cannot be counted from column `{self.strata}`",
                hint="put the stratum in the `stratum` column and pass their number as `strata`",
            )
        examples = (dataset.examples(place, 1, keep_faulty=True) for place in range(dataset.length))
        return 1 + max((example.stratum or 0 for (example,) in examples), default=-1)

    def gold(self, example: Example) -> Any:
        """Return completions that earn a high reward: text, a list with one for each turn, or a script.

        A script is a function from `ModelRequest` to a reply, as `ScriptedClient` takes it; several players
        take a dictionary. Only `wander check` asks. None stands for the answer, as the parser writes it.
        """
        return None

    def rng(self, state: State, *keys: Key) -> random.Random:
        """Return a fresh generator that depends on the run's seed, the example's seed and the keys only.

        Name the situation in the keys: `self.rng(state, "opponent", board)`.
        """
        return derived_rng(state.run_seed, state.example.seed, *keys)

    def openings(self) -> Rows | None:
        """Return rows for every position in which an episode may begin, or None.

        An environment that has them, and makes every choice of its own by `choose`, can be walked
        exhaustively: `wander eval --exhaustive` plays each reply that it could give.
        """
        return None

    def opening_examples(self) -> list[Example]:
        """Return the examples of `openings`; empty when the environment declares none."""
        if (rows := self.openings()) is None:
            return []
        self.dataset()  # so that the examples to show are there
        bound = Dataset(
            rows, split="eval", seed=self.seed, system_prompt=self.system_prompt, few_shot=self.few_shot
        )
        bound.show(*self._shown)
        return bound.examples(0, None)

    def choose(
        self, state: State, options: Sequence[Option], drawn: Callable[[], Option], position: str = ""
    ) -> Option:
        """Return the environment's choice: `drawn()`, or in an exhaustive evaluation each option in turn.

        `options` are all that `drawn` may return, JSON values in a fixed order:
        `self.choose(state, moves, lambda: self.rng(state, board).choice(moves))`. `position` shows a person
        who makes the choice (`wander env play --against`) what it is about.
        """
        return choose(state, options, drawn, position)

    def init_state(self, example: Example, *, index: int = 0, run_seed: int = 0) -> State:
        """Return the state in which a rollout of the example starts; it shares nothing with the example."""
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

        What it raises becomes the rollout's failure.
        """

    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Play one episode for each index, all at once, and score them, together if the request asks for it.

        Failed rollouts are not scored, so they are left out of the group that is scored together.
        """
        pairs = zip(request.indices, request.rollout_ids, strict=True)
        if len(request.indices) == 1:  # without a task of its own, which costs time
            episodes = [await self._play_one_episode(request, *pair) for pair in pairs]
        else:
            episodes = await asyncio.gather(*(self._play_one_episode(request, *pair) for pair in pairs))
        scoring = time.perf_counter()
        played = [each.state for each in episodes if each.state["failure"] is None]
        if request.together and self.rubric.has_group_functions:
            await self._score_states(played, together=True)
        else:
            for state in played:
                await self._score_states([state], together=False)
        seconds = (time.perf_counter() - scoring) / max(1, len(episodes))
        return [episode.record(scoring_seconds=seconds) for episode in episodes]

    async def _play_one_episode(self, request: RolloutRequest, index: int, rollout_id: str) -> _Episode:
        """Play one episode to its end, unscored."""
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        started = time.perf_counter()
        state = self.init_state(request.example, index=index, run_seed=request.run_seed)
        state["host"] = RolloutHost(request.client, rollout_id)
        if (transcript := request.client.transcript(rollout_id)) is not None:
            _restore(state, transcript)
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
        """Announce the rollout to the client, play it, and keep what went wrong."""
        try:
            try:
                calls.begin()
                await self.play(state, calls)
            except BaseException as error:
                blame(error, EnvironmentFault, "play", passing=BoundaryError)
                raise
        except ChoicePending:
            state["stop_reason"] = PENDING
        except ContextOverflow:
            state["truncated"] = True
            state["stop_reason"] = "context_overflow"
        except BoundaryError as error:
            _fail(state, error)

    async def _run_cleanup_hooks(self, state: State) -> None:
        """Run every cleanup hook, also after one of them raised; the first failure is the one on record."""
        for _, hook in self._cleanups:
            try:
                await call_hook(hook, state)
            except BoundaryError as error:
                _fail(state, error)

    async def _score_states(self, states: Sequence[State], *, together: bool) -> None:
        """Score a rollout, or a group together, once as each player saw it; where that fails, so has each."""
        for player in self._players or (None,):
            seen = states if player is None else [_as_seen_by(player, state) for state in states]
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
            try:  # a rubric may override both methods
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

        Raises the first `EnvironmentFault` after all have run.
        """
        hooks = [hook for _, hook in find_marked(self, TEARDOWN)]
        await call_every([*hooks, self.rubric.close])


class LocalEnvironment(EnvironmentHandle):
    """An environment in this process, behind the port that hosts use (`wander.handle.EnvironmentHandle`)."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self._watch: SilenceWatch | None = None
        self._scoring_seconds = 0.0

    def report_silence(self, notices: Notices) -> None:
        """Report code that does not return, from now on."""
        self._watch = SilenceWatch(notices)

    @cached_property
    def info(self) -> EnvironmentInfo:
        """What the environment says about itself."""
        return self.env.info

    @property
    def lost_reason(self) -> None:
        """None: it lives as long as this process."""
        return None

    @property
    def scoring_seconds(self) -> float:
        """Seconds for which synchronous reward functions let nothing else of this process go on."""
        return self._scoring_seconds

    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        """Return `count` examples from position `start` of the stored order; None means to the end."""
        with self._watched(None, f"{split} dataset"):
            return self.env.dataset(split).examples(start, count, keep_faulty=True)

    async def openings(self) -> list[Example]:
        """Return an example for every opening; empty when the environment declares none."""
        return self.env.opening_examples()

    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Play and score the request; record a failure in its rollout."""
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
        """Report code of a block that does not return, and count what its scoring takes."""
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


def _restore(state: State, transcript: Transcript) -> None:
    """Bring a state to where a recorded rollout ended, as far as its record tells."""
    for name in ("prompt", "completion"):
        state[name] = copy_json(getattr(transcript, name))
    state["turns"] = list(transcript.turns)
    state["stop_reason"], state["truncated"] = transcript.stop_reason, transcript.truncated
    state["public"] = copy_json(transcript.info)


def _as_seen_by(player: str, state: State) -> State:
    """Return a player's view of a finished rollout: its own turns, and the conversation that it saw."""
    return State(
        {
            **state,
            "player": player,
            "prompt": seen_by(player, state.prompt),
            "completion": seen_by(player, state.completion),
            "turns": [turn for turn in state.turns if turn.player == player],
        }
    )


def _fail(state: State, error: BoundaryError) -> None:
    """Record the first failure of a rollout; a failed rollout has no stop reason."""
    if state["failure"] is None:
        state["failure"] = error.failure()
        state["stop_reason"] = None


class _Episode(NamedTuple):
    """A rollout that was played and is not recorded yet."""

    state: State
    started_at: str
    seconds: float
    """How long it was played."""

    def record(self, scoring_seconds: float) -> Rollout:
        """Return the finished rollout. The values are ours, so they are not validated a second time."""
        state = self.state
        failure, public = state["failure"], state["public"]
        try:
            if public != {}:
                public = as_json(public)
                canonical_json(public)
        except (TypeError, ValueError) as error:
            fault = EnvironmentFault(f'`state["public"]` is not a JSON value: {error}')
            failure, public = failure or fault.failure(), {}
        asked = completed = 0
        estimated = False
        for turn in state.turns:
            asked += turn.usage.prompt_tokens
            completed += turn.usage.completion_tokens
            estimated = estimated or turn.usage.estimated
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
            usage=Usage.assemble(prompt_tokens=asked, completion_tokens=completed, estimated=estimated),
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
    """Raise `TypeError` naming the first argument that no environment takes, and what was perhaps meant."""
    if not unknown:
        return
    name = next(iter(unknown))
    accepted = [each for each in inspect.signature(Environment).parameters if each != "unknown"]
    advice = did_you_mean(name, accepted) or f"it takes {', '.join(accepted)}"
    raise TypeError(f"`{cls.__name__}` got the unknown argument `{name}`; {advice}")
