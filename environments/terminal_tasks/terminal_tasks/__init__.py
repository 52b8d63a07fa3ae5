"""Terminal tasks: the model finishes a small job in a shell, and its files are checked in a new box."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from wander import Example, Messages, ProceduralRows, Rubric, State
from wander.boxes import Box, BoxLimits, BoxSpec
from wander.envs import AgentEnv, run_commands
from wander.errors import ConfigError
from wander.seeding import derived_rng

from terminal_tasks.players import commands_for
from terminal_tasks.tasks import LEVELS, TASKS, Drawn

__all__ = ["TerminalTasksEnv", "load_environment"]

SYSTEM_PROMPT = (
    "Solve the task with the tool `bash`, which runs commands in a Linux shell. "
    "The files are in the working folder. When you have finished, answer without calling a tool."
)
BOX = BoxSpec(limits=BoxLimits(memory_mb=512, disk_mb=64, processes=128, seconds=900))
AGENT_BOX = BoxSpec(limits=BoxLimits(memory_mb=3072, disk_mb=1024, processes=512, seconds=3600))
SHOWN: list[Messages] = json.loads(Path(__file__).with_name("shown.json").read_text(encoding="utf-8"))
"""Conversations of the expert for `show_examples`, about tasks of neither split."""
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.000,
    "random player, easy": 0.000,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.000,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


def draw(info: dict[str, Any]) -> Drawn:
    """Return the instance of a task that belongs to an example."""
    return TASKS[info["task"]].draw(derived_rng("terminal_tasks", info["seed"]))


class TerminalTasksEnv(AgentEnv):
    """A task in a shell."""

    async def setup_box(self, box: Box, state: State) -> None:
        """Write the files of the task."""
        drawn = draw(state["info"])
        await box.upload({f"/work/{path}": text for path, text in drawn.files.items()})
        for path, target in drawn.links.items():
            folder = shlex.quote(path.rpartition("/")[0])
            await box.exec(f"mkdir -p {folder} && ln -s {shlex.quote(target)} {shlex.quote(path)}")

    def gold(self, example: Example) -> Any:
        """Return the completions of the expert."""
        return run_commands(*commands_for(example.prompt[-1]["content"]))


async def solved(box: Box, info: dict[str, Any]) -> bool:
    """Return whether the model's files solve the task."""
    return await TASKS[info["task"]].check(box, draw(info))


def load_environment(
    num_examples: int = 1000,
    levels: int = len(LEVELS),
    max_turns: int = 12,
    seed: int = 0,
    show_examples: int = 0,
    agent: str | None = None,
    deterministic: bool | None = None,
) -> TerminalTasksEnv:
    """Return the environment. Example i has the difficulty i mod `levels` and one of its tasks.

    Each box has 512 MiB of memory, 64 MiB for files and no network. With `agent`, an agent program plays
    (`wander.envs.AgentEnv`), makes up to 100 model calls, and has 3 GiB of memory and 1 GiB for files. A hub
    can replay its rollouts if `deterministic` declares that the program always does the same.
    """
    if num_examples < 1 or not 1 <= levels <= len(LEVELS) or not 0 <= show_examples <= len(SHOWN):
        raise ConfigError(
            f"`num_examples` is {num_examples}, `levels` is {levels}, `show_examples` is {show_examples}",
            hint=f"give num_examples >= 1, 1 <= levels <= {len(LEVELS)}, 0 <= show_examples <= {len(SHOWN)}",
        )

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("terminal_tasks", seed, split, index)
            level = LEVELS[index % levels]
            name = sorted(level)[index // levels % len(level)]
            info = {"task": name, "seed": rng.getrandbits(48)}
            return {
                "question": TASKS[name].question.format(**draw(info).fields),
                "info": info,
                "stratum": index % levels,
            }

        return ProceduralRows(row_at, num_examples)

    return TerminalTasksEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        agent=agent,
        deterministic=deterministic,
        box=BOX if agent is None else AGENT_BOX,
        command_seconds=10.0,
        output_chars=2000,
        max_turns=max_turns if agent is None else None,
        system_prompt=SYSTEM_PROMPT if agent is None else None,
        few_shot=[message for conversation in SHOWN[:show_examples] for message in conversation],
        rubric=Rubric([solved]),
        strata=levels,
        seed=seed,
        summary="Finish a small job in a shell: logs, tables, links, builds, bugs, scripts.",
        tags=("shell", "sandbox", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
