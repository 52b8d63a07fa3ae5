"""Runs an environment over many rows without a host, as packages and their tests do.

Hosts do not use this. They play examples one by one through `wander_compat.adapters.classic`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wander_compat.verifiers.async_calls import maybe_retry, maybe_semaphore
from wander_compat.verifiers.clients import resolve_client
from wander_compat.verifiers.outputs import (
    make_dataset,
    metadata_of,
    save_metadata,
    save_new_outputs,
    state_to_output,
)
from wander_compat.verifiers.rubrics.rubric import score_states
from wander_compat.verifiers.timing import time_block, timing_of
from wander_compat.verifiers.types import GenerateOutputs, RolloutOutput, SamplingArgs, State

if TYPE_CHECKING:
    from datasets import Dataset

T = TypeVar("T")


class GenerationRuns:
    """`generate`, `evaluate` and their parts. A mixin of `Environment`."""

    make_dataset = staticmethod(make_dataset)

    def _get_eval_inputs(
        self: Any, num_examples: int = -1, rollouts_per_example: int = 1
    ) -> list[dict[str, Any]]:
        rows = self.get_eval_dataset(n=num_examples)
        return [dict(row) for row in rows for _ in range(rollouts_per_example)]

    def get_eval_inputs(self, num_examples: int = -1, rollouts_per_example: int = 1) -> list[dict[str, Any]]:
        """Return the evaluation rows, each repeated as often as it is played."""
        return self._get_eval_inputs(num_examples, rollouts_per_example)

    async def evaluate(
        self: Any,
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        num_examples: int = -1,
        rollouts_per_example: int = 1,
        max_concurrent: int = -1,
        **options: Any,
    ) -> GenerateOutputs:
        """Play the evaluation rows and score them. Accepts the options of `generate`."""
        inputs = self.get_eval_inputs(num_examples, rollouts_per_example)
        options["rollouts_per_example"] = rollouts_per_example
        outputs: GenerateOutputs = await self.generate(
            inputs, client, model, sampling_args, max_concurrent, **options
        )
        return outputs

    async def generate(
        self: Any,
        inputs: Dataset | Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_concurrent: int = -1,
        results_path: Path | None = None,
        state_columns: Sequence[str] | None = None,
        save_results: bool = False,
        independent_scoring: bool = False,
        max_retries: int = 0,
        on_progress: Any = None,
        rollouts_per_example: int = 1,
        **options: Any,
    ) -> GenerateOutputs:
        """Play rows and score them. Rows of one example must be consecutive, and are scored together.

        A rollout that raises an exception is recorded with its error, and the others continue. Unknown
        options are ignored, because they differ between releases.
        """
        rows = rows_of(inputs)
        groups = [[row] for row in rows]
        if not independent_scoring:
            groups = [list(group) for _, group in groupby(rows, key=lambda row: row["example_id"])]
        limit = await maybe_semaphore(max_concurrent)
        run_name = f"{self.env_id or 'environment'}--{model.replace('/', '--')}"
        folder = Path(results_path or Path("outputs", "evals", run_name, os.urandom(4).hex()))
        started = time.time()
        outputs: list[list[RolloutOutput]] = [[] for _ in groups]
        resolved = resolve_client(client)

        async def play(position: int, group: list[dict[str, Any]]) -> None:
            async with limit:
                # Not an override of a package, because `generate` never called those.
                group_outputs = await GenerationRuns.run_group(
                    self, group, resolved, model, sampling_args, max_retries, state_columns
                )
            outputs[position] = group_outputs
            if save_results:
                save_new_outputs(group_outputs, folder)
            for callback in on_progress if isinstance(on_progress, list) else [on_progress]:
                if callback is not None:
                    callback([output for done in outputs for output in done], group_outputs, {})

        async with asyncio.TaskGroup() as tasks:
            for position, group in enumerate(groups):
                tasks.create_task(play(position, group))
        played = [output for group in outputs for output in group]
        metadata = metadata_of(
            played,
            self.pass_threshold,
            env_id=self.env_id,
            env_args=self.env_args,
            model=model,
            base_url=str(getattr(resolved.client, "base_url", "")),
            num_examples=len(groups),
            rollouts_per_example=rollouts_per_example,
            sampling_args=sampling_args or {},
            date=datetime.now().isoformat(),
            time=time.time() - started,
            state_columns=list(state_columns or []),
            path_to_save=folder,
            tools=self.tool_defs,
        )
        if save_results:
            save_metadata(metadata, folder)
        return GenerateOutputs(outputs=played, metadata=metadata)

    a_generate = generate

    def generate_sync(self, inputs: Any, client: Any, model: str, **options: Any) -> GenerateOutputs:
        """Play rows from sync code."""
        return run_blocking(lambda: self.generate(inputs, client, model, **options))

    def evaluate_sync(self, client: Any, model: str, **options: Any) -> GenerateOutputs:
        """Play the evaluation rows from sync code."""
        return run_blocking(lambda: self.evaluate(client, model, **options))

    async def run_rollout(
        self: Any,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_retries: int = 0,
        state_columns: Sequence[str] | None = None,
        **options: Any,
    ) -> RolloutOutput:
        """Play a row and score it."""
        outputs: list[RolloutOutput] = await self.run_group(
            [input], client, model, sampling_args, max_retries, state_columns
        )
        return outputs[0]

    async def run_group(
        self: Any,
        group_inputs: Sequence[Mapping[str, Any]],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_retries: int = 0,
        state_columns: Sequence[str] | None = None,
        **options: Any,
    ) -> list[RolloutOutput]:
        """Play the rows of one example and score them together."""
        play, resolved = maybe_retry(play_row, max_retries), resolve_client(client)
        states = await asyncio.gather(
            *(play(self, dict(row), resolved, model, sampling_args or {}) for row in group_inputs)
        )
        await score_example(self, states)
        return [state_to_output(state, state_columns) for state in states]


async def play_row(
    env: Any, row: Mapping[str, Any], client: Any, model: str, sampling_args: SamplingArgs
) -> State:
    """Play a row with an environment of any generation. Returns its state, which contains any exception."""
    try:
        if env.generation.own_rollout == "columns":
            return await play_by_columns(env, row, client, model, sampling_args)
        state: State = await env.rollout(row, client, model, sampling_args)
    except Exception as error:  # noqa: BLE001 - a failed rollout must not end the others
        state = await env.init_state(row, client, model, sampling_args)
        state.update(error=error, completion=[], is_completed=True, stop_condition="has_error")
    return state


async def play_by_columns(
    env: Any, row: Mapping[str, Any], client: Any, model: str, sampling_args: SamplingArgs
) -> State:
    """Play a row with a `rollout` method in the format of the first generation."""
    fresh = await env.init_state(row, client, model, sampling_args)
    completion, played = await env.rollout(
        client=getattr(client, "client", None) or client,
        model=model,
        prompt=fresh["prompt"],
        answer=fresh["answer"],
        task=fresh["task"],
        info=fresh["info"],
        sampling_args=sampling_args,
    )
    state = played if isinstance(played, State) else State({**fresh, **dict(played)})
    state["completion"] = completion if isinstance(completion, str) else env.own_messages(completion)
    state["is_completed"] = True
    return state


async def score_example(env: Any, states: Sequence[State]) -> None:
    """Score the states of one example. Failed ones get 0, regardless of the rubric."""
    played = [state for state in states if state.get("error") is None]
    for state in states:
        if state.get("error") is not None:
            await env.rubric.dummy_score_rollout(state)
    if not env.score_rollouts:
        await env.rubric.dummy_score_group(played)
    elif played:
        with time_block(timing_of(played[0]).scoring):
            await score_states(env.rubric, played)
    for state in states:
        await env.rubric.cleanup(state)


def rows_of(inputs: Any) -> list[dict[str, Any]]:
    """Return rows given as a dataset, a list, or by column."""
    if isinstance(inputs, Mapping):
        names = list(inputs)
        columns = zip(*(inputs[name] for name in names), strict=True)
        rows = [dict(zip(names, values, strict=True)) for values in columns]
    else:
        rows = [dict(row) for row in inputs]
    for position, row in enumerate(rows):
        row.setdefault("example_id", position)
    return rows


def run_blocking(work: Callable[[], Coroutine[Any, Any, T] | Awaitable[T]]) -> T:
    """Run async work from sync code, in a separate thread if an event loop is already running."""

    async def done() -> T:
        return await work()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(done())
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, done()).result()
