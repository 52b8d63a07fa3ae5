"""Two levers: the model finds out which of two levers pays more often, remembers it and uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wander import Example, Messages, MultiTurnEnv, ProceduralRows, Rubric, State, XMLParser
from wander.errors import ConfigError
from wander.seeding import derived_rng, derived_seed

from two_levers.bandit import GAPS, LEVERS, Bandit, pairs, solve
from two_levers.players import Player, pull

__all__ = ["TwoLeversEnv", "load_environment"]

SYSTEM_PROMPT = (
    "Two levers, left and right, pay 1 or 0, each by a hidden chance that stays the same. "
    "One pays more often. You pull {pulls} times: find the better one and use it. "
    "Answer in this form:\n<pull>left</pull>"
)
REFERENCE_SCORES: dict[str, float] = {
    "random player": -0.067,
    "random player, easy": -0.063,
    "SmolLM2-135M-Instruct": -1.403,
    "SmolLM2-135M-Instruct, easy": -0.334,
    "scripted expert": 0.977,
}
"""Mean rewards of the runs in `reference/`."""


class TwoLeversEnv(MultiTurnEnv):
    """The levers; what the n-th pull of a lever pays depends only on the run's and the example's seed."""

    def __init__(self, bandit: Bandit, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bandit = bandit

    def setup_state(self, state: State) -> None:
        """Begin with no pull."""
        state["pulls"] = []
        state["optimum"], state["most"] = self.bandit.optimum, self.bandit.pulls

    def env_response(self, messages: Messages, state: State) -> Messages:
        """Pay the lever that the model pulled; a turn without one is used up."""
        lever = self.parser.parse_answer([messages[-1]])
        said = "no lever"
        if lever in LEVERS:
            number = state["pulls"].count(lever)
            paid = self.rng(state, "payoff", lever, number).random() < state["info"][lever]
            said = f"{lever} pays {int(paid)}"
        state["pulls"].append(lever if lever in LEVERS else None)
        reply: Messages = [{"role": "user", "content": said}]
        if len(state["pulls"]) < self.bandit.pulls:
            return reply
        state["final_env_response"] = reply
        return []

    def gold(self, example: Example) -> Player:
        """Return a player that knows the better lever."""
        return lambda _: pull(max(LEVERS, key=lambda lever: example.info[lever]))


def of_optimal(state: State) -> float:
    """Return better pulls less all others, as a share of what perfect play comes to on average."""
    return (2 * better(state) - 1) / state["optimum"]


def better(state: State) -> float:
    """Return the share of the pulls that were of the better lever."""
    return state["pulls"].count(max(LEVERS, key=lambda lever: state["info"][lever])) / state["most"]


def tried_both(state: State) -> bool:
    """Return whether both levers were pulled."""
    return set(LEVERS) <= set(state["pulls"])


def invalid_pulls(state: State) -> int:
    """Return the number of turns without a pull."""
    return state["pulls"].count(None)


def load_environment(
    num_examples: int = 1000,
    pulls: int = 10,
    gaps: Sequence[float] = GAPS,
    seed: int = 0,
    show_examples: int = 0,
) -> TwoLeversEnv:
    """Return the environment; the train and the eval split have `num_examples` pairs of levers each.

    Example i belongs to stratum i mod the number of `gaps`: its levers' chances differ by that gap.
    """
    if num_examples < 1 or pulls < 1 or not gaps or not all(pairs(gap) and gap > 0 for gap in gaps):
        raise ConfigError(
            f"`num_examples` is {num_examples}, `pulls` is {pulls}, `gaps` are {list(gaps)}",
            hint="give num_examples >= 1, pulls >= 1 and gaps from 0.1 to 0.8, in tenths",
        )
    bandit = solve(pulls, tuple(gaps))

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("two_levers", seed, split, index)
            chances = list(rng.choice(pairs(gaps[index % len(gaps)])))
            rng.shuffle(chances)
            return {
                "question": "Pull a lever.",
                "info": dict(zip(LEVERS, chances, strict=True)),
                "seed": derived_seed("two_levers", seed, split, index),
                "stratum": index % len(gaps),
            }

        return ProceduralRows(row_at, num_examples)

    return TwoLeversEnv(
        bandit,
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        max_turns=pulls + 1,  # the last pull is answered too
        system_prompt=SYSTEM_PROMPT.format(pulls=pulls),
        parser=XMLParser(["pull"], answer_field="pull"),
        rubric=Rubric([of_optimal, better, tried_both, invalid_pulls], [1.0, 0.0, 0.0, 0.0]),
        strata=len(gaps),
        summary="Find the better of two levers by pulling them, remember it and use it.",
        tags=("bandit", "memory", "multi-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
        reward_bounds=(-1 / bandit.optimum, 1 / bandit.optimum),
    )
