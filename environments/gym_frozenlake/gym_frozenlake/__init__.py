"""Gymnasium's FrozenLake on a lake of its own for every example: the model crosses it by words."""

from __future__ import annotations

from typing import Any

from wander import Example, ProceduralRows, State
from wander.errors import ConfigError
from wander.seeding import derived_rng, derived_seed
from wander.types import GridView
from wander_integrations import GymnasiumEnv

from gym_frozenlake.players import Player, expert, way

__all__ = ["FrozenLakeEnv", "load_environment"]

SYSTEM_PROMPT = (
    "Cross a frozen lake from S to the goal G, one square at a time: F is ice, H a hole, P is where you are. "
    "A step into a hole ends the game, one off the lake leaves you where you are.{slippery} You have {turns} "
    "steps. Answer with one of left, down, right and up, as in <action>right</action>."
)
SLIPPERY = " The ice is slippery: a step goes where you meant in one case of three, and else to either side."
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.020,
    "random player, easy": 0.040,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.333,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


def shown(env: Any, observation: Any) -> str:
    """Return the lake with the player on it."""
    lake = [[each.decode() for each in row] for row in env.unwrapped.desc]
    at = divmod(int(observation), len(lake[0]))
    stands_on = lake[at[0]][at[1]]
    lake[at[0]][at[1]] = "P"
    ending = {"H": "You fell into a hole.", "G": "You reached the goal."}
    return "\n".join(["".join(row) for row in lake] + ([ending[stands_on]] if stands_on in ending else []))


class FrozenLakeEnv(GymnasiumEnv):
    """Gymnasium's FrozenLake, on the lake of the example."""

    def gold(self, example: Example) -> Player:
        """Return the player that takes a shortest way."""
        return expert


def draw_lake(size: int, frozen: float, seed: int, split: str, index: int) -> list[str]:
    """Return a lake that can be crossed, with S and G in opposite corners. No other split has it."""
    rng = derived_rng("gym-frozenlake", seed, split, index)
    while True:
        squares = ["F" if rng.random() < frozen else "H" for _ in range(size * size)]
        squares[0], squares[-1] = "S", "G"
        lake = ["".join(squares[row * size : (row + 1) * size]) for row in range(size)]
        if way(lake) and (derived_seed("lake", lake) % 4 == 0) == (split == "eval"):
            return lake


def steps(state: State) -> int:
    """Return the number of turns."""
    return len(state.turns)


def load_environment(
    num_examples: int = 1000,
    size: int = 4,
    frozen: float = 0.75,
    slippery: bool = False,
    max_turns: int = 20,
    seed: int = 0,
    show_examples: int = 0,
) -> FrozenLakeEnv:
    """Return the environment: lakes of `size` by `size` squares, each ice with the probability `frozen`."""
    if num_examples < 1 or not 3 <= size <= 16 or not 0.5 <= frozen <= 0.9 or max_turns < 1:
        raise ConfigError(
            f"`num_examples` {num_examples}, `size` {size}, `frozen` {frozen}, `max_turns` {max_turns}",
            hint="give positive numbers, 3 <= size <= 16 and 0.5 <= frozen <= 0.9",
        )

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            lake = draw_lake(size, frozen, seed, split, index)
            return {
                "question": "",
                "info": {"options": {"desc": lake}},
                "answer": "\n".join(lake),
                "example_id": f"{split}-{index}",
            }

        return ProceduralRows(row_at, num_examples)

    env = FrozenLakeEnv(
        "FrozenLake-v1",
        options={"is_slippery": slippery, "max_episode_steps": max_turns},
        observe=shown,
        max_turns=max_turns,
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        system_prompt=SYSTEM_PROMPT.format(slippery=SLIPPERY if slippery else "", turns=max_turns),
        seed=seed,
        summary="Cross Gymnasium's frozen lake, another one for every example.",
        tags=("game", "gymnasium", "multi-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
        view=GridView(columns=size, separator="", cells={"S": "S", "F": "", "H": "●", "G": "★", "P": "P"}),
    )
    env.rubric.add_metric(steps)
    return env
