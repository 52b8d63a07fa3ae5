"""Number files: the model answers a question about a file of numbers with a shell command."""

from __future__ import annotations

from typing import Any

from wander import ProceduralRows, Rubric, SandboxEnv, State
from wander.boxes import Box, BoxLimits, BoxSpec
from wander.errors import ConfigError
from wander.seeding import derived_rng

__all__ = ["load_environment"]

COMMANDS = {
    "smallest": "sort -n numbers | head -n 1 > answer",
    "largest": "sort -n numbers | tail -n 1 > answer",
    "first": "head -n 1 numbers > answer",
    "last": "tail -n 1 numbers > answer",
}
"""Right command for each question."""
BOX = BoxSpec(limits=BoxLimits(memory_mb=256, disk_mb=16, processes=64, seconds=120))


class NumberFilesEnv(SandboxEnv):
    """Ends when the model answers without a call, or after `max_turns`."""

    async def setup_box(self, box: Box, state: State) -> None:
        """Write the numbers, one on each line."""
        text = "".join(f"{number}\n" for number in state["info"]["numbers"])
        await box.upload({"/work/numbers": text})


async def right(box: Box, answer: str) -> bool:
    """Return whether the model's file contains the right number."""
    try:
        return (await box.download("/work/answer")).decode().strip() == answer
    except (FileNotFoundError, ValueError):
        return False


def called(state: State) -> bool:
    """Return whether a command was run."""
    ran = sum(message["role"] == "tool" for message in state.completion)
    return bool(ran > state["public"].get("tool_errors", 0))


def load_environment(num_examples: int = 1000, seed: int = 0) -> NumberFilesEnv:
    """Return the environment; the train and the eval split have `num_examples` files each."""
    if num_examples < 1:
        raise ConfigError(f"`num_examples` is {num_examples}", hint="give num_examples >= 1")

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("number_files", seed, split, index)
            low, *middle, high = sorted(rng.sample(range(10, 100), 5))
            rng.shuffle(middle)
            first, second, last = middle  # neither the smallest nor the largest number is at an end
            numbers = [first, *rng.sample([low, high, second], 3), last]
            word = rng.choice(sorted(COMMANDS))
            answers = {"smallest": low, "largest": high, "first": first, "last": last}
            return {
                "question": f"Write the {word} number into answer.",
                "answer": str(answers[word]),
                "info": {"numbers": numbers},
            }

        return ProceduralRows(row_at, num_examples)

    rubric = Rubric([right])
    rubric.add_metric(called)
    return NumberFilesEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        box=BOX,
        command_seconds=10.0,
        max_turns=3,
        rubric=rubric,
        seed=seed,
        summary="Answer a question about a file of numbers with a shell command.",
        tags=("shell", "train", "eval"),
        reference_scores={"the right command": 1.0},
    )
