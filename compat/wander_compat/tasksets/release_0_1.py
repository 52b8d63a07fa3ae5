"""Adapts task sets of `verifiers.v1` 0.1.14, which has rows, a harness with signals, and a classic `Env`."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any, cast

from wander.dataset import Dataset, ProceduralRows, Rows
from wander.environment import Environment
from wander.errors import BoundaryError, DatasetError, EnvironmentFault, SandboxError
from wander.handle import Split
from wander.parsers import Parser
from wander.rollout.calls import ModelCalls
from wander.rollout.faults import describe_fault
from wander.rollout.outside_calls import ROLLOUT
from wander.rubrics.rubric import Rubric
from wander.rubrics.score import Score
from wander.types import Example, RewardFunctionInfo, State

from wander_compat.adapters.classic import ClassicRows, keep_ending
from wander_compat.adapters.host_client import HostClient, settle
from wander_compat.boundaries import find_boundary
from wander_compat.verifiers.envs.environment import tools_of
from wander_compat.verifiers.errors import ModelError, OverlongPromptError
from wander_compat.verifiers.messages.conversion import wire_messages

ACCOUNT = "PRIME_API_KEY"
PLAYED = "task_and_state"
"""Key under which a rollout's state holds the library's task and state until they are scored."""


class StateEnvironment(Environment):
    """Plays the library's `Env` of 0.1.14 through Wander's interface."""

    kind = "taskset"

    def __init__(self, library_env: Any) -> None:
        self.library = library_env
        runtime = library_env.harness.runtime
        self.grouped = bool(runtime.has_group_stage or library_env._uses_custom_init_group)
        harness = library_env.harness
        self.rents_sandbox = harness.program_uses_sandbox() or any(
            toolset.sandbox is not None for toolset in harness.runtime.toolsets
        )
        # A program is foreign code, whose random draws are not seeded.
        chat = harness.program is None and not self.rents_sandbox
        super().__init__(
            dataset=(), rubric=SignalRubric(self), name=library_env.env_id or None, deterministic=chat
        )

    def _bind_datasets(
        self, dataset: Rows | ProceduralRows | None, eval_dataset: Rows | ProceduralRows | None
    ) -> dict[Split, Dataset]:
        taskset = self.library.taskset
        rows_by_split: dict[Split, Any] = {"train": taskset.get_dataset(), "eval": taskset.get_eval_dataset()}
        system = list(taskset.system_prompt or [])
        bound: dict[Split, Dataset] = {
            split: RowsOfTasks(rows, split, system) for split, rows in rows_by_split.items() if len(rows)
        }
        if not bound:
            raise DatasetError(f"`{taskset.taskset_id}` is empty: it contains no tasks")
        return bound

    @property
    def turn_limit(self) -> int | None:
        """Maximum number of turns of a rollout, or None."""
        limit = self.library.harness.config.max_turns
        return int(limit) if isinstance(limit, int) and limit > 0 else None

    async def play(self, state: State, model: ModelCalls) -> None:
        """Let the library's harness run the task."""
        if self.rents_sandbox and ACCOUNT not in os.environ:
            raise SandboxError(
                "the task set runs code in a sandbox of Prime Intellect, which needs a key",
                hint=f"set `{ACCOUNT}` and add `--pass-env {ACCOUNT}`",
            )
        client = HostClient(model)
        rows = cast(RowsOfTasks, self.dataset(state.example.split))
        ROLLOUT.set(model.rollout_id)
        settle(state.run_seed, state.example.seed, "start")
        task = self.library.taskset.to_task(rows.original(state.example))
        # Tasks that differ within a group are distinguished by the rollout's index in it.
        tasks, states = await self.library.taskset.init_group(task, state["index"] + 1)
        task, played = tasks[-1], states[-1]
        key = f"{model.rollout_id}-{state.run_seed}"
        played.setdefault("runtime", {})["client_key"] = key
        controls = {
            "client": library_client(client),
            "model": model.client.model,
            "sampling_args": model.sampling.given(),
            "score_rollout": True,
        }
        if self.grouped:
            controls["group_key"] = key
        self.library.apply_controls([played], controls)
        shared = False
        try:
            played = await self.library.harness.run(task, played)
            shared = self.grouped
        finally:
            if not shared:  # the group of a failed or canceled rollout is not scored, so drop its client
                self.library.harness.runtime.model_clients.pop(key, None)
        state[PLAYED] = (task, played)
        self._keep_conversation(state, played)
        error = played.get("error")
        if error is not None or client.failure is not None:
            await self.clean_up([(task, played)])
            raise client.failure or _boundary_error(error)
        keep_ending(state, played)

    def _keep_conversation(self, state: State, played: Any) -> None:
        system = wire_messages(played.get("system_prompt"))
        state["prompt"] = [*system, *wire_messages(played.get("prompt"))]
        state["completion"] = wire_messages(played.get("completion"))

    async def clean_up(self, played: list[tuple[Any, Any]]) -> None:
        """Let the library release the resources shared by a group of rollouts."""
        if not self.grouped:
            return
        clients = self.library.harness.runtime.model_clients
        for key in [pair[1]["runtime"]["client_key"] for pair in played]:
            clients.pop(key, None)
        await self.library.harness.cleanup_group([pair[0] for pair in played], [pair[1] for pair in played])

    async def teardown(self) -> None:
        """Stop the library's servers and sandboxes. Raises `EnvironmentFault`."""
        try:
            await self.library.harness.teardown()
        except Exception as error:
            raise EnvironmentFault(describe_fault(error, "teardown")) from error
        await super().teardown()


def library_client(host: HostClient) -> Any:
    """Return a client of the real library that gets its answers from the host."""
    base: Any = importlib.import_module("verifiers.clients").Client
    errors: Any = importlib.import_module("verifiers.errors")
    response: Any = importlib.import_module("verifiers.types").Response

    async def get_response(
        self: Any, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any
    ) -> Any:
        try:
            answer = await host.get_response(prompt, model, dict(sampling_args or {}), tools_of(tools))
        except OverlongPromptError as error:
            raise errors.OverlongPromptError(str(error)) from error
        except ModelError as error:
            raise errors.ModelError(str(error)) from error
        return response.model_validate(answer.model_dump())

    async def close(self: Any) -> None:
        """Do nothing, because the host closes its own client."""

    never = dict.fromkeys(base.__abstractmethods__)
    kind = type("LibraryClient", (base,), {**never, "get_response": get_response, "close": close})
    return kind(host)


class RowsOfTasks(ClassicRows):
    """The tasks of a set as examples. A rollout gets the library's original row."""

    def __init__(self, rows: Any, split: Split, system: list[Any]) -> None:
        super().__init__(rows, split)
        self._system = system

    def original(self, example: Example) -> dict[str, Any]:
        """Return the row of an example. Raises `EnvironmentFault` if it belongs to another set."""
        if example.index >= len(self._ids) or self._ids[example.index] != example.example_id:
            raise EnvironmentFault(f"the task set has no task `{example.example_id}` at {example.index}")
        return dict(self._originals[example.index])

    def _normalize(self, row: Any, index: int) -> Example:
        task = json.loads(row["info"]["task"])
        fields = {**task, "prompt": [*self._system, *task.get("prompt", [])]}
        left_out = ("info", "taskset_id")
        return super()._normalize({name: fields[name] for name in fields if name not in left_out}, index)


class SignalRubric(Rubric):
    """Returns the rewards computed by the library's signals."""

    def __init__(self, env: StateEnvironment) -> None:
        super().__init__()
        self._env = env

    def describe(self) -> list[RewardFunctionInfo]:
        """Return the signals: rewards with their weights, metrics with weight 0. Advantages are left out."""
        runtime = self._env.library.harness.runtime
        return [
            RewardFunctionInfo(name=signal["name"], weight=signal["weight"])
            for signal in (*runtime.rollout_signals, *runtime.group_signals)
            if signal["kind"] != "advantage"
        ]

    @property
    def has_group_functions(self) -> bool:
        """Whether rollouts can only be scored together with the others of their example."""
        return self._env.grouped

    async def score(self, state: State, parser: Parser | None = None) -> Score:
        """Return the score of a finished rollout."""
        return (await self.score_group([state], parser))[0]

    async def score_group(self, states: Sequence[State], parser: Parser | None = None) -> list[Score]:
        """Score the finished rollouts of one example together."""
        played = [state.pop(PLAYED) for state in states]
        if self._env.grouped and played:
            settle(states[0].run_seed, states[0].example.seed, "score")
            try:
                tasks, library_states = [pair[0] for pair in played], [pair[1] for pair in played]
                await self._env.library.harness.score_group(tasks, library_states)
            finally:
                await self._env.clean_up(played)
        return [_score(library_state) for _, library_state in played]


def _score(played: Any) -> Score:
    metrics = {name: float(value) for name, value in (played.get("metrics") or {}).items()}
    return Score.of(float(played.get("reward") or 0.0), metrics)


def _boundary_error(error: Any) -> BoundaryError:
    """Convert the library's record of an error to an error of the boundary that failed."""
    noted = dict(error) if isinstance(error, dict) else {"error": str(error)}
    chain = str(noted.get("error_chain_str") or noted.get("error") or noted)
    kinds = map(find_boundary, re.findall(r"\w+", chain))
    kind = next((kind for kind in kinds if kind is not EnvironmentFault), EnvironmentFault)
    return kind(chain[:2000])
