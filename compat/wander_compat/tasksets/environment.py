"""Adapts a task set of `verifiers.v1` (0.3, 0.4; for 0.2 see `release_0_2.py`) as a Wander environment.

The library plays the episode: the task's hooks, the agents, the program, the rewards. The model calls of its
interception server go to the host (`wander_compat.tasksets.endpoint`). A failed episode has no reward. The
rollout's conversation is that of the first trainable agent.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wander.dataset import Dataset, ProceduralRows, Rows
from wander.environment import Environment
from wander.errors import BoundaryError, ContextOverflow, DatasetError, EnvironmentFault, RubricError
from wander.handle import Split
from wander.parsers import Parser
from wander.rollout.calls import ModelCalls
from wander.rollout.outside_calls import ROLLOUT
from wander.rubrics.rubric import Rubric
from wander.rubrics.score import Score
from wander.seeding import derived_seed
from wander.types import Example, RewardFunctionInfo, State

from wander_compat.adapters.host_client import HostClient, settle
from wander_compat.boundaries import find_boundary
from wander_compat.tasksets.boxes import BOXES, RolloutBoxes, always_starts_box
from wander_compat.tasksets.endpoint import KEY_VARIABLE, HostModel
from wander_compat.verifiers.messages.conversion import plain, wire_messages

EPISODE = "taskset_episode"
"""Key under which a rollout's state holds the library's episode until it is scored."""


class TasksetEnvironment(Environment):
    """Plays the library's environment through Wander's interface."""

    kind = "taskset"

    def __init__(self, library_env: Any) -> None:
        self.library = library_env
        self._serving: Serving | None = None
        super().__init__(
            dataset=(),
            rubric=EpisodeRubric(self._task_type()),
            deterministic=not self._executes_code(),
        )
        # The output of commands may contain times and process ids.
        rows = self.dataset("eval")
        if self.in_boxes or (isinstance(rows, TaskRows) and rows.name_images()):
            self.deterministic = False

    def _task_type(self) -> type:
        task_type: type = type(self.library.taskset).task_type()
        return task_type

    def _executes_code(self) -> bool:
        return any(harness.EXECUTES_CODE for harness in self.library._harnesses.values())

    @property
    def in_boxes(self) -> bool:
        """Whether every rollout starts a box."""
        specs = getattr(self.library, "_agent_specs", {})
        return any(always_starts_box(spec.runtime) for spec in specs.values())

    def _bind_datasets(
        self, dataset: Rows | ProceduralRows | None, eval_dataset: Rows | ProceduralRows | None
    ) -> dict[Split, Dataset]:
        return {"eval": TaskRows(self.library.taskset)}

    @property
    def turn_limit(self) -> int | None:
        """Maximum number of turns of a rollout, or None."""
        limit = getattr(getattr(self.library.config, "agent", None), "max_turns", None)
        return int(limit) if limit else None

    async def play(self, state: State, model: ModelCalls) -> None:
        """Let the library play one episode of the task."""
        client = HostClient(model)
        rows = self.dataset(state.example.split)
        assert isinstance(rows, TaskRows)
        task = rows.task(state.example)
        ROLLOUT.set(model.rollout_id)
        boxes = RolloutBoxes(state["host"])
        BOXES.set(boxes)
        settle(state.run_seed, state.example.seed, "start")
        # All rollouts of this event loop share the library's servers and the connection to the host.
        loop = asyncio.get_running_loop()
        if self._serving is None or self._serving.loop is not loop:
            self._serving = Serving(self.library, loop)
        serving = self._serving
        await serving.ready()
        traces: list[str] = []

        def note_trace(trace: Any) -> None:
            traces.append(trace.id)
            serving.model.bind(trace.id, client)

        try:
            episode = await self._run_episode(task, serving, model.client.model, note_trace)
        finally:
            serving.model.release(traces)
        if boxes.images:
            state["public"]["box_images"] = boxes.images
        state[EPISODE] = episode
        error = _first_error(episode)
        played = find_scored_trace(episode)
        if played is not None:
            _keep_conversation(state, played)
        if client.failure is not None and (error is not None or isinstance(client.failure, ContextOverflow)):
            raise client.failure
        if error is not None:
            raise error
        state["truncated"] = bool(state["truncated"] or getattr(episode, "is_timeout", False))
        state["stop_reason"] = (played.stop_condition if played is not None else None) or "is_completed"

    async def _run_episode(
        self, task: Any, serving: Serving, model: str, note_trace: Callable[[Any], None]
    ) -> Any:
        return await self.library.run_episode(task, serving.context(model), on_trace=note_trace)

    async def teardown(self) -> None:
        """Stop the library's servers."""
        if self._serving is not None and self._serving.loop is asyncio.get_running_loop():
            await self._serving.end()
        self._serving = None
        await super().teardown()


class Serving:
    """Keeps the library's servers open, in one task from start to end."""

    def __init__(self, library_env: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.model = HostModel()
        self.client: Any = None
        """The library's client of `model`, if the release shares one between all rollouts."""
        self._ended = asyncio.Event()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._task = loop.create_task(self._serve(library_env))

    async def _serve(self, library_env: Any) -> None:
        try:
            async with self.model, library_env.serving():
                self._ready.set_result(None)
                await self._ended.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def ready(self) -> None:
        """Wait until rollouts can be played. Raises the error that prevented the servers from starting."""
        await asyncio.shield(self._ready)

    def context(self, model: str) -> Any:
        """Return the model in the library's format: its name and this endpoint."""
        context: Any = importlib.import_module("verifiers.v1.clients").ModelContext
        return context(model=model, client=self.client_config())

    def client_config(self) -> Any:
        """Return this endpoint in the library's format."""
        os.environ[KEY_VARIABLE] = self.model.token
        config: Any = importlib.import_module("verifiers.v1.clients").EvalClientConfig
        return config(base_url=self.model.base_url, api_key_var=KEY_VARIABLE)

    async def end(self) -> None:
        """Stop the servers."""
        self._ended.set()
        await asyncio.gather(self._task, return_exceptions=True)


class TaskRows(Dataset):
    """The tasks of a set in their own order, as examples. An endless set is read only as far as needed."""

    def __init__(self, taskset: Any) -> None:
        self._tasks: list[Any] = []
        # Releases before 0.3 lack the iterator.
        self._stream: Iterator[Any] = iter(taskset if hasattr(taskset, "__iter__") else taskset.load())
        if not taskset.INFINITE:
            self._tasks = list(self._stream)
            if not self._tasks:
                raise DatasetError(f"`{taskset.config.id}` is empty: it contains no tasks")
        length = None if taskset.INFINITE else len(self._tasks)
        super().__init__(ProceduralRows(self._task_at, length), split="eval")
        ids = [task.data.idx for task in self._tasks]
        self._named = bool(ids) and None not in ids and len(set(ids)) == len(ids)

    def task(self, example: Example) -> Any:
        """Return the task of an example. Raises `EnvironmentFault` if it belongs to another set."""
        if self._normalize(self._task_at(example.index), example.index).example_id != example.example_id:
            raise EnvironmentFault(f"the task set has no task `{example.example_id}` at {example.index}")
        return self._tasks[example.index]

    def name_images(self) -> bool:
        """Return whether tasks name a container image. Of an endless set, only the first one is read."""
        self._task_at(0)
        return any(getattr(task.data, "image", None) for task in self._tasks)

    def _find_namesake(self, example_id: str, row: Any, index: int) -> None:
        """Return None, because `_named` ensures that no two tasks have the same id."""

    def _task_at(self, index: int) -> Any:
        while len(self._tasks) <= index:
            self._tasks.append(next(self._stream))
        return self._tasks[index]

    def _normalize(self, row: Any, index: int) -> Example:
        example_id = str(row.data.idx) if self._named else str(index)
        data = row.data.model_dump(mode="json", exclude_defaults=True)
        system = [{"role": "system", "content": row.data.system_prompt}] if row.data.system_prompt else []
        prompt = row.data.prompt or []  # empty if a simulated user speaks first
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        return Example.model_construct(
            example_id=example_id,
            index=index,
            split=self.split,
            seed=derived_seed("example", self.seed, self.split, example_id),
            prompt=[*system, *wire_messages(prompt)],
            answer=plain(data.get("answer", "")),
            info={},
            stratum=None,
            columns={name: plain(value) for name, value in data.items() if name not in ("prompt", "answer")},
        )


class EpisodeRubric(Rubric):
    """Returns the rewards that the library computed while playing."""

    def __init__(self, task_type: type) -> None:
        super().__init__()
        self._task_type = task_type

    def describe(self) -> list[RewardFunctionInfo]:
        """Return the marked methods of the task: rewards with their weights, and metrics with weight 0."""
        return [*self._marked("reward"), *self._marked("metric")]

    def _marked(self, mark: str) -> list[RewardFunctionInfo]:
        members = {name: getattr(self._task_type, name, None) for name in dir(self._task_type)}
        return [
            RewardFunctionInfo(
                name=name, weight=0.0 if mark == "metric" else float(getattr(member, "_vf_weight", 1.0))
            )
            for name, member in members.items()
            if callable(member) and hasattr(member, mark)
        ]

    async def score(self, state: State, parser: Parser | None = None) -> Score:
        """Return the score of a finished rollout."""
        if EPISODE not in state:
            reason = "the library scores a rollout while it plays, so a record cannot be scored again"
            return Score(reward=None, error=RubricError(reason))
        played = find_scored_trace(state.pop(EPISODE))
        if played is None:
            return Score(reward=None, error=RubricError("the episode has no scored agent"))
        missing = [name for name, reward in played.rewards.items() if reward is None]
        if missing:
            return Score(reward=None, error=RubricError(f"`{missing[0]}` returned no reward"))
        scores = {name: self._raw(name, reward) for name, reward in played.rewards.items()}
        metrics = {name: value for name, value in played.metrics.items() if value is not None}
        return Score.of(played.reward, {**metrics, **scores})

    def _raw(self, name: str, reward: Any) -> float:
        """Return a reward before it is multiplied by its weight."""
        return float(reward.score)

    async def score_group(self, states: Sequence[State], parser: Parser | None = None) -> list[Score]:
        """Score finished rollouts one by one. From 0.3 on, the library never compares episodes."""
        return [await self.score(state, parser) for state in states]


def find_scored_trace(episode: Any) -> Any | None:
    """Return the trace of the first trainable agent. Before 0.3 there is only one agent."""
    agents = ((trace, getattr(trace, "agent", None)) for trace in episode.traces)
    return next((trace for trace, agent in agents if getattr(agent, "trainable", True)), None)


def _keep_conversation(state: State, trace: Any) -> None:
    """Copy the longest branch of a trace as the rollout's conversation."""
    branches = trace.branches
    if not branches:
        return
    branch = max(branches, key=lambda branch: len(branch.nodes))
    opening = next((at for at, node in enumerate(branch.nodes) if node.sampled), len(branch.nodes))
    messages = wire_messages([node.message for node in branch.nodes])
    state["prompt"], state["completion"] = messages[:opening], messages[opening:]
    if len(branches) > 1:
        state["public"]["other_branches"] = len(branches) - 1


def _first_error(episode: Any) -> BoundaryError | None:
    """Return the first failure, with the boundary that the library attributes it to."""
    errors = [*(error for trace in episode.traces for error in trace.errors), *episode.errors]
    if not errors:
        return None
    return find_boundary(errors[0].type)(f"{errors[0].type}: {errors[0].message}")
