"""An environment as a task of Inspect: Inspect's model plays it, and its reward is the score.

from inspect_ai import eval
eval(as_inspect_task(wander.load("admin/tictactoe"), limit=20), model="openai/gpt-5-mini")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wander.clients.completions import usage_of
from wander.errors import require_extra
from wander.types import Usage

from wander_integrations.episodes import Steppable, SteppedRollout, episode_loop, require_sound

with require_extra("inspect", needed_for="a task of Inspect", of="wander-integrations"):
    from inspect_ai import Task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import get_model, messages_from_openai, messages_to_openai
    from inspect_ai.scorer import Score, mean, scorer, stderr
    from inspect_ai.solver import solver
    from inspect_ai.tool import ToolInfo, ToolParams

if TYPE_CHECKING:
    from wander.handle import Split

_PLAYED = "wander_rollout"
_MOST = 100
"""Default number of examples of a task."""


def as_inspect_task(
    environment: Steppable, *, split: Split = "eval", limit: int | None = None, run_seed: int = 0
) -> Task:
    """Return the task of the first examples of a split, 100 of them or `limit`.

    Each epoch of Inspect is another rollout of its example. A rollout that fails is an error of its sample,
    never a score of 0.
    """
    info = environment.info
    count = info.eval_examples if split == "eval" else info.train_examples
    wanted = min(limit or _MOST, count or limit or _MOST)
    rows = environment.dataset(split)
    samples = []
    for position in range(wanted):
        example = rows[position]
        messages = episode_loop().run(messages_from_openai(list(example.prompt)))
        samples.append(Sample(id=example.example_id, input=messages, metadata={"position": position}))
    return Task(
        dataset=MemoryDataset(samples, name=info.name),
        solver=_play(environment, split, run_seed),
        scorer=_reward(),
        name=info.name,
        metadata={"environment": info.name, "run_seed": run_seed},
    )


@solver(name="wander_rollout")  # type: ignore[untyped-decorator, unused-ignore]
def _play(environment: Steppable, split: Split, run_seed: int) -> Any:
    """Return a solver: the environment drives the rollout, and Inspect's model answers."""
    rows = environment.dataset(split)

    async def solve(state: Any, generate: Any) -> Any:
        episode = SteppedRollout(
            environment, rows[state.metadata["position"]], index=state.epoch - 1, run_seed=run_seed
        )
        try:
            await episode.begin()
            while episode.rollout is None:
                asked = await messages_from_openai(list(episode.messages))
                output = await get_model().generate(
                    asked, tools=[_tool(each) for each in episode.tools or []]
                )
                state.output = output
                (said,) = await messages_to_openai([output.message])
                reason = "length" if output.stop_reason in ("max_tokens", "model_length") else "stop"
                await episode.answer(dict(said), finish_reason=reason, usage=_usage(output))
        finally:
            await episode.close()
        rollout = episode.rollout
        require_sound(rollout)
        state.messages = await messages_from_openai(list(episode.messages))
        state.metadata[_PLAYED] = {"reward": rollout.reward, "metrics": rollout.metrics}
        state.completed = True
        return state

    return solve


@scorer(metrics=[mean(), stderr()], name="reward")  # type: ignore[untyped-decorator, unused-ignore]
def _reward() -> Any:
    """Return the scorer that hands on what the environment gave."""

    async def score(state: Any, target: Any) -> Score:
        played = state.metadata[_PLAYED]
        return Score(value=float(played["reward"]), metadata=dict(played["metrics"]))

    return score


def _tool(schema: dict[str, Any]) -> ToolInfo:
    function = schema["function"]
    return ToolInfo(
        name=function["name"],
        description=function.get("description") or function["name"],
        parameters=ToolParams.model_validate({"properties": {}, **function.get("parameters", {})}),
    )


def _usage(output: Any) -> Usage:
    counted = output.usage
    return (counted and usage_of(counted.model_dump())) or Usage()
