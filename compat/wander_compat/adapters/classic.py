"""Adapts a classic environment, so that hosts can evaluate, train, post and replay it like any other.

The dataset, the loop and the rubric remain those of the environment. There are three differences from running
it without Wander: failed rollouts are not scored, an exception in one rollout does not affect the others, and
random draws from the global generators depend only on the rollout (`host_client.settle`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from wander.dataset import Dataset, ProceduralRows, Rows
from wander.environment import Environment
from wander.errors import (
    BoundaryError,
    ContextOverflow,
    DatasetError,
    EnvironmentFault,
    RubricError,
    SandboxError,
    ToolError,
)
from wander.handle import Split
from wander.parsers import Parser, XMLParser
from wander.rollout.calls import ModelCalls
from wander.rollout.faults import describe_fault
from wander.rollout.outside_calls import ROLLOUT
from wander.rubrics.rubric import Rubric
from wander.rubrics.score import Score
from wander.seeding import derived_seed
from wander.types import Example, RewardFunctionInfo, State

from wander_compat.adapters.host_client import HostClient, settle
from wander_compat.verifiers import errors as classic
from wander_compat.verifiers.envs.env_group import EnvGroup, EnvGroupRubric
from wander_compat.verifiers.envs.environment import Environment as ClassicEnvironment
from wander_compat.verifiers.envs.generation_runs import play_by_columns
from wander_compat.verifiers.envs.generations import distributions_of
from wander_compat.verifiers.envs.multi_turn import SingleTurnEnv
from wander_compat.verifiers.envs.tool_env import StatefulToolEnv, ToolEnv
from wander_compat.verifiers.messages.conversion import plain, wire_messages
from wander_compat.verifiers.parsers import XMLParser as ClassicXMLParser
from wander_compat.verifiers.rubrics.judge_rubric import JudgeRubric
from wander_compat.verifiers.rubrics.rubric import REWARD_ERRORS, ROLLOUT_ID, is_overridden, score_states
from wander_compat.verifiers.rubrics.rubric import Rubric as ClassicRubric
from wander_compat.verifiers.rubrics.rubric_group import RubricGroup
from wander_compat.verifiers.types import State as ClassicState

PLAYED = "classic_state"
"""Key under which a rollout's state holds the environment's own state until it is scored."""

_KINDS: tuple[tuple[type, str], ...] = (
    (EnvGroup, "group"),
    (StatefulToolEnv, "stateful_tool"),
    (ToolEnv, "tool"),
    (SingleTurnEnv, "single_turn"),
)
_OUTSIDE = (classic.ModelError, classic.InfraError, classic.MissingKeyError, OSError, ImportError)
"""Exceptions of reward functions that mean an outside failure. The rollout's reward is then missing."""


class AdaptedEnvironment(Environment):
    """Plays a classic environment through Wander's interface."""

    def __init__(self, classic_env: ClassicEnvironment) -> None:
        self.classic = classic_env
        self.kind = next(  # type: ignore[misc]
            (kind for cls, kind in _KINDS if isinstance(classic_env, cls)), "multi_turn"
        )
        parser = classic_env.parser
        super().__init__(
            dataset=(),
            rubric=AdaptedRubric(classic_env),
            # Only checks use this parser, to write a correct answer. The classic rubric has its own.
            parser=XMLParser(parser._fields, parser.answer_field)
            if isinstance(parser, ClassicXMLParser)
            else Parser(),
            name=classic_env.env_id or None,
            summary=_summary(classic_env),
            deterministic=not asks_outside(classic_env),
        )

    def _bind_datasets(
        self, dataset: Rows | ProceduralRows | None, eval_dataset: Rows | ProceduralRows | None
    ) -> dict[Split, Dataset]:
        found: dict[Split, Any] = {
            "train": self.classic.build_dataset(),
            "eval": self.classic.build_eval_dataset(),
        }
        bound: dict[Split, Dataset] = {
            split: ClassicRows(rows, split) for split, rows in found.items() if rows is not None and len(rows)
        }
        if not bound:
            raise DatasetError(f"`{type(self.classic).__name__}` is empty: it contains no rows")
        return bound

    @property
    def turn_limit(self) -> int | None:
        """Maximum number of turns of a rollout, or None."""
        limit = getattr(self.classic, "max_turns", -1)
        return limit if isinstance(limit, int) and limit > 0 else None

    async def play(self, state: State, model: ModelCalls) -> None:
        """Play the episode with the environment's own `rollout`."""
        client = HostClient(model)
        row = cast(ClassicRows, self.dataset(state.example.split)).original(state.example)
        ROLLOUT.set(model.rollout_id)
        settle(state.run_seed, state.example.seed, "start")
        sampling = model.sampling.given()
        if self.classic.generation.own_rollout == "columns":
            played = await play_by_columns(self.classic, row, client, model.client.model, sampling)
        else:
            played = await self.classic.rollout(row, client, model.client.model, sampling)
        if not isinstance(played, ClassicState):
            raise EnvironmentFault(f"`rollout` returned a `{type(played).__name__}`, not a state")
        state[PLAYED] = played
        played[ROLLOUT_ID] = model.rollout_id
        _keep_conversation(state, played)
        error = played.get("error")
        if error is not None:
            await self.classic.rubric.cleanup(played)
            raise boundary_error(error, client)
        keep_ending(state, played)

    async def teardown(self) -> None:
        """Run the teardown of the environment and its rubric. Raises `EnvironmentFault`."""
        try:
            await self.classic._teardown()
        except Exception as error:
            raise EnvironmentFault(describe_fault(error, "teardown")) from error


class ClassicRows(Dataset):
    """The rows of a classic dataset as examples. Values that JSON cannot represent become text.

    A rollout gets the original row of the environment.
    """

    def __init__(self, rows: Any, split: Split) -> None:
        super().__init__(rows, split=split)
        self._originals = rows
        ids = [str(example_id) for example_id in rows["example_id"]]
        self._ids = ids if len(set(ids)) == len(ids) else [str(position) for position in range(len(ids))]

    def original(self, example: Example) -> dict[str, Any]:
        """Return the row of an example. If it is not in this dataset, create a row from the example."""
        if example.index < len(self._ids) and self._ids[example.index] == example.example_id:
            return dict(self._originals[example.index])
        number = int(example.example_id) if example.example_id.isdigit() else example.index
        own = {"prompt": example.prompt, "answer": example.answer, "info": example.info, "example_id": number}
        return {**example.columns, **own}

    def _normalize(self, row: Any, index: int) -> Example:
        example_id = self._ids[index]
        known = {"prompt", "answer", "info", "example_id"}
        info = row.get("info")
        return Example.model_construct(
            example_id=example_id,
            index=index,
            split=self.split,
            seed=derived_seed("example", self.seed, self.split, example_id),
            prompt=wire_messages(row.get("prompt")),
            answer=plain(row.get("answer")) if row.get("answer") is not None else "",
            info=plain(info) if isinstance(info, Mapping) else {"text": info} if info else {},
            stratum=None,
            columns={name: plain(value) for name, value in row.items() if name not in known},
        )


class AdaptedRubric(Rubric):
    """Scores with the classic rubric, and reports the exceptions of its functions."""

    def __init__(self, classic_env: ClassicEnvironment) -> None:
        super().__init__()
        self._env = classic_env

    @property
    def _rubric(self) -> ClassicRubric:
        return self._env.rubric

    def describe(self) -> list[RewardFunctionInfo]:
        """Return the name and weight of every function. Functions with the same name are reported as one."""
        names, weights = self._rubric._get_reward_func_names(), list(self._rubric._get_reward_weights())
        if len(weights) != len(names):
            weights = [1.0] * len(names)
        weights_by_name: dict[str, float] = {}
        for name, weight in zip(names, weights, strict=True):
            weights_by_name[name] = weights_by_name.get(name, 0.0) + weight
        return [RewardFunctionInfo(name=name, weight=weight) for name, weight in weights_by_name.items()]

    @property
    def has_group_functions(self) -> bool:
        """Whether rollouts can only be scored together with the others of their example."""
        inner = rubrics_in(self._rubric)
        return any(rubric.has_group_rewards or is_overridden(rubric, "score_group") for rubric in inner)

    async def score(self, state: State, parser: Parser | None = None) -> Score:
        """Score one finished rollout."""
        return (await self.score_group([state], parser))[0]

    async def score_group(self, states: Sequence[State], parser: Parser | None = None) -> list[Score]:
        """Score the finished rollouts of one example together."""
        if not states:
            return []
        first = states[0]
        settle(first.run_seed, first.example.seed, "score")
        played = [cast(ClassicState, state.pop(PLAYED)) for state in states]
        await score_states(self._rubric, played)
        weights = {function.name: function.weight for function in self.describe()}
        scores = [_score(*pair, weights) for pair in zip(played, states, strict=True)]
        for classic_state in played:
            await self._rubric.cleanup(classic_state)
        return scores


def _score(played: ClassicState, state: State, weights: Mapping[str, float]) -> Score:
    """Return the score that the classic rubric left in the state. An honest 0 differs from a failure."""
    raised: dict[str, Exception] = played.get(REWARD_ERRORS) or {}
    metrics = {
        name: float(value)
        for name, value in (played.get("metrics") or {}).items()
        if name not in raised or weights.get(name, 1.0) != 0
    }
    noted = {name: describe_fault(error, name) for name, error in raised.items()}
    if noted:
        state["public"][REWARD_ERRORS] = noted
    outside = next((name for name, error in raised.items() if is_outside(error)), None)
    if outside is not None:
        return Score(reward=None, metrics=metrics, error=RubricError(noted[outside]))
    return Score.of(played.get("reward") or 0.0, metrics)


def is_outside(error: BaseException) -> bool:
    """Return whether an exception, or one of its causes, comes from outside the environment's code."""
    from openai import OpenAIError

    return any(isinstance(cause, (*_OUTSIDE, OpenAIError)) for cause in classic.error_chain(error))


def boundary_error(error: BaseException, client: HostClient) -> BoundaryError:
    """Convert a classic rollout's error to an error of the boundary that failed."""
    if isinstance(error, classic.ModelError) and client.failure is not None:
        return client.failure
    text = describe_fault(error, "rollout")
    if isinstance(error, classic.ToolError):
        return ToolError(text)
    if isinstance(error, classic.InfraError):
        return SandboxError(text, retryable=True)
    return EnvironmentFault(text)


def keep_ending(state: State, played: Mapping[str, Any]) -> None:
    """Copy the reason why a rollout without an error ended. Raises `ContextOverflow`."""
    if played.get("prompt_too_long"):
        raise ContextOverflow("the prompt is too long for the model")
    state["truncated"] = bool(state["truncated"] or played.get("is_truncated"))
    state["stop_reason"] = played.get("stop_condition") or "is_completed"


def _keep_conversation(state: State, played: ClassicState) -> None:
    """Copy the conversation as the environment left it."""
    completion = played.get("completion")
    if isinstance(completion, str):
        completion = [{"role": "assistant", "content": completion}]
    state["prompt"] = wire_messages(played.get("prompt"))
    if completion is not None:
        state["completion"] = wire_messages(completion)


def rubrics_in(rubric: ClassicRubric) -> list[ClassicRubric]:
    """Return a rubric and all rubrics that it consists of."""
    inner: list[ClassicRubric] = []
    if isinstance(rubric, RubricGroup):
        inner = rubric.rubrics
    elif isinstance(rubric, EnvGroupRubric):
        inner = [env.rubric for env in rubric.env_map.values()]
    return [rubric, *(part for member in inner for part in rubrics_in(member))]


def asks_outside(env: ClassicEnvironment) -> bool:
    """Return whether a judge or a sandbox takes part in the rollouts."""
    judged = any(isinstance(rubric, JudgeRubric) for rubric in rubrics_in(env.rubric))
    inner = env.envs if isinstance(env, EnvGroup) else []
    return judged or getattr(env, "outside", False) or any(asks_outside(member) for member in inner)


def _summary(env: ClassicEnvironment) -> str:
    """Return the summary of the package that the environment's class comes from, or an empty string."""
    for cls in (type(env), *(type(func) for func in env.rubric._get_reward_funcs())):
        top = cls.__module__.partition(".")[0]
        if top not in ("wander", "wander_compat", "builtins"):
            return next((str(package.metadata["Summary"] or "") for package in distributions_of(top)), "")
    return ""
