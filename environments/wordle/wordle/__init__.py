"""Wordle: the model guesses a five-letter word in six tries from the feedback on each guess."""

from __future__ import annotations

from typing import Any

from wander import Example, Messages, MultiTurnEnv, ProceduralRows, Rubric, State, XMLParser, stop
from wander.errors import ConfigError
from wander.seeding import derived_rng, derived_seed

from wordle.players import Player, expert
from wordle.words import WORDS, feedback

__all__ = ["WordleEnv", "load_environment"]

SYSTEM_PROMPT = (
    "Guess the secret word: five letters, common English, six guesses. "
    "After each guess every letter gets a mark: G (right place), Y (elsewhere in the word), X (not in it). "
    "Think briefly, then put your guess into <guess> and </guess>."
)
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.042,
    "random player, easy": 0.042,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.000,
    "scripted expert": 0.810,
}
"""Mean rewards of the runs in `reference/`."""


class WordleEnv(MultiTurnEnv):
    """Marks each guess. A guess that is not five letters costs its turn."""

    def setup_state(self, state: State) -> None:
        """Begin without a guess."""
        state["marks"] = []

    def env_response(self, messages: Messages, state: State) -> Messages:
        """Mark the last guess."""
        guess = (self.parser.parse_answer([messages[-1]]) or "").lower()
        if len(guess) != 5 or not (guess.isascii() and guess.isalpha()):
            state["marks"].append("XXXXX")
            said = "That is not a guess of five letters."
        else:
            state["marks"].append(feedback(guess, state["answer"]))
            said = f"{' '.join(guess.upper())}\n{' '.join(state['marks'][-1])}"
        left = self.max_turns - len(state["marks"])
        return [{"role": "user", "content": f"{said}\n{left} guesses left."}]

    @stop
    def found(self, state: State) -> bool:
        """Return whether the word is found."""
        return "GGGGG" in state["marks"]

    @stop
    def max_turns_reached(self, state: State) -> bool:
        """Return whether every guess is marked, including the last one."""
        return len(state["marks"]) == self.max_turns

    def gold(self, example: Example) -> Player:
        """Return the player that keeps to the words which fit."""
        return expert


def score(state: State) -> float:
    """From 1 for the first guess down to 0.5 for the last; else 0.2 times the share of G at the end."""
    marks = state["marks"]
    if "GGGGG" in marks:
        return 1.0 - 0.1 * (len(marks) - 1)
    return 0.2 * marks[-1].count("G") / 5 if marks else 0.0


def won(state: State) -> bool:
    """Return whether the word was found."""
    return "GGGGG" in state["marks"]


def guesses(state: State) -> int:
    """Return the number of guesses."""
    return len(state["marks"])


def load_environment(
    num_examples: int = 1000, hints: int = 0, seed: int = 0, show_examples: int = 0
) -> WordleEnv:
    """Return the environment; the prompt shows `hints` letters of the word in their places."""
    if num_examples < 1 or not 0 <= hints <= 4:
        raise ConfigError(
            f"`num_examples` is {num_examples}, `hints` is {hints}",
            hint="give num_examples >= 1 and 0 <= hints <= 4",
        )

    def rows(split: str) -> ProceduralRows:
        words = [each for each in WORDS if (derived_seed("wordle", each) % 5 == 0) == (split == "eval")]

        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("wordle", seed, split, index)
            word = rng.choice(words)
            shown = set(rng.sample(range(5), hints))
            form = " ".join(letter if place in shown else "_" for place, letter in enumerate(word.upper()))
            question = f"The word: {form}\nYour first guess?" if hints else "Your first guess?"
            return {"question": question, "answer": word, "example_id": f"{split}-{index}"}

        return ProceduralRows(row_at, num_examples)

    rubric = Rubric([score])
    rubric.add_metric(won)
    rubric.add_metric(guesses)
    return WordleEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        max_turns=6,
        system_prompt=SYSTEM_PROMPT,
        parser=XMLParser(["guess"], answer_field="guess"),
        rubric=rubric,
        seed=seed,
        summary="Guess a five-letter word in six tries from the feedback on each guess.",
        tags=("game", "multi-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
