"""Mastermind: the model breaks a code of digits from the feedback on each guess."""

from __future__ import annotations

import re
from typing import Any

from wander import Example, Messages, MultiTurnEnv, ProceduralRows, Rubric, State, XMLParser, stop
from wander.errors import ConfigError
from wander.seeding import derived_rng, derived_seed

from mastermind.players import Player, compared, expert

__all__ = ["MastermindEnv", "load_environment"]

SYSTEM_PROMPT = (
    "Break a secret code of {length} digits from 1 to {symbols}; a digit may occur more than once. "
    "After each guess you are told how many digits are in place, and how many more elsewhere in the code. "
    "You have {turns} guesses. Put your guess into <guess> and </guess>, as in <guess>{sample}</guess>."
)
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.033,
    "random player, easy": 0.443,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.168,
    "scripted expert": 0.823,
}
"""Mean rewards of the runs in `reference/`."""


class MastermindEnv(MultiTurnEnv):
    """Compares each guess with the code. A completion without a guess costs its turn."""

    def __init__(self, *, symbols: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.symbols = symbols

    def setup_state(self, state: State) -> None:
        """Begin without a guess."""
        state["in_place"] = []

    def env_response(self, messages: Messages, state: State) -> Messages:
        """Compare the last guess with the code."""
        said = re.sub(r"[\s,]", "", self.parser.parse_answer([messages[-1]]) or "")
        code: str = state["answer"]
        if not re.fullmatch(f"[1-{self.symbols}]{{{len(code)}}}", said):
            state["in_place"].append(0)
            return [
                {
                    "role": "user",
                    "content": f"That is not a guess of {len(code)} digits from 1 to {self.symbols}.",
                }
            ]
        in_place, elsewhere = compared(said, code)
        state["in_place"].append(in_place)
        return [{"role": "user", "content": f"{said}: {in_place} in place, {elsewhere} elsewhere."}]

    @stop
    def broken(self, state: State) -> bool:
        """Return whether the code is found."""
        return len(state["answer"]) in state["in_place"]

    @stop
    def max_turns_reached(self, state: State) -> bool:
        """Return whether every guess is answered, including the last one."""
        return len(state["in_place"]) == self.max_turns

    def gold(self, example: Example) -> Player:
        """Return the player that keeps to the codes which fit."""
        return expert


def score(state: State) -> float:
    """From 1 for the first guess towards 0.5; else 0.2 times the share in place of the last guess."""
    guesses, length, most = state["in_place"], len(state["answer"]), state["info"]["guesses"]
    if length in guesses:
        return 1.0 - 0.5 * (len(guesses) - 1) / most
    return 0.2 * guesses[-1] / length if guesses else 0.0


def won(state: State) -> bool:
    """Return whether the code was broken."""
    return len(state["answer"]) in state["in_place"]


def guesses(state: State) -> int:
    """Return the number of guesses."""
    return len(state["in_place"])


def load_environment(
    num_examples: int = 1000,
    length: int = 4,
    symbols: int = 6,
    max_turns: int = 10,
    seed: int = 0,
    show_examples: int = 0,
) -> MastermindEnv:
    """Return the environment: codes of `length` digits from 1 to `symbols`, and `max_turns` guesses."""
    if num_examples < 1 or max_turns < 1 or not 2 <= length <= 5 or not 3 <= symbols <= 9:
        raise ConfigError(
            f"`num_examples` {num_examples}, `length` {length}, `symbols` {symbols}, `max_turns` {max_turns}",
            hint="give positive numbers, 2 <= length <= 5 and 3 <= symbols <= 9",
        )
    sample = "123456789"[:length] if symbols >= length else ("123" * 2)[:length]

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("mastermind", seed, split, index)
            while True:  # a code belongs to only one split
                code = "".join(str(rng.randint(1, symbols)) for _ in range(length))
                if (derived_seed("mastermind", code) % 4 == 0) == (split == "eval"):
                    break
            return {
                "question": "Your first guess?",
                "answer": code,
                "info": {"guesses": max_turns},
                "example_id": f"{split}-{index}",
            }

        return ProceduralRows(row_at, num_examples)

    rubric = Rubric([score])
    rubric.add_metric(won)
    rubric.add_metric(guesses)
    return MastermindEnv(
        symbols=symbols,
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        max_turns=max_turns,
        system_prompt=SYSTEM_PROMPT.format(length=length, symbols=symbols, turns=max_turns, sample=sample),
        parser=XMLParser(["guess"], answer_field="guess"),
        rubric=rubric,
        seed=seed,
        summary="Break a code of digits from the feedback on each guess.",
        tags=("game", "multi-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
