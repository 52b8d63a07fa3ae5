"""Countdown: the model reaches a target number with the given numbers and the four operations."""

from __future__ import annotations

import ast
import random
from collections import Counter
from fractions import Fraction
from typing import Any

from wander import Example, Messages, Parser, ProceduralRows, Rubric, SingleTurnEnv, XMLParser
from wander.errors import ConfigError
from wander.seeding import derived_rng

from countdown.players import Player, expert

__all__ = ["CountdownEnv", "load_environment"]

SYSTEM_PROMPT = (
    "Reach the target with the given numbers, the operations + - * / and parentheses. "
    "Use each number at most once. "
    "Put the expression alone into <answer> and </answer>, as in <answer>(3 + 4) * 25</answer>."
)
LARGE = (25, 50, 75, 100)
LONGEST = 200
OPERATIONS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.050,
    "random player, easy": 0.360,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.250,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


class CountdownEnv(SingleTurnEnv):
    """One expression."""

    def gold(self, example: Example) -> Player:
        """Return the player that tries every way to combine the numbers."""
        return expert


def value_of(expression: str) -> tuple[Fraction, Counter[int]] | None:
    """Return the exact value of an expression and the numbers in it, or None if it is not an expression."""
    used: Counter[int] = Counter()

    def walk(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used[node.value] += 1
            return Fraction(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return Fraction(OPERATIONS[type(node.op)](walk(node.left), walk(node.right)))
        raise ValueError("no number and no operation")

    try:
        tree = ast.parse(expression.strip()[: LONGEST + 1], mode="eval")
        return (walk(tree.body), used) if len(expression.strip()) <= LONGEST else None
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def valid(completion: Messages, info: dict[str, Any], parser: Parser) -> bool:
    """Return whether the answer is an expression of the given numbers, each at most once."""
    found = value_of(parser.parse_answer(completion) or "")
    return found is not None and found[1] <= Counter(info["numbers"])


def right(completion: Messages, info: dict[str, Any], parser: Parser) -> bool:
    """Return whether the expression is valid and its value is the target."""
    found = value_of(parser.parse_answer(completion) or "")
    return found is not None and found[1] <= Counter(info["numbers"]) and found[0] == info["target"]


def draw_game(rng: random.Random, count: int) -> tuple[list[int], int]:
    """Return numbers and a target from 10 to 999 that all of them together reach. No number is the target."""
    while True:
        numbers = [rng.choice(LARGE) if rng.random() < 0.2 else rng.randint(1, 20) for _ in range(count)]
        values = list(numbers)
        while len(values) > 1:
            b, a = sorted(values.pop(rng.randrange(len(values))) for _ in range(2))
            values.append(rng.choice([a + b, a * b, a - b, *([a // b] if b and a % b == 0 else [])]))
        if 10 <= values[0] <= 999 and values[0] not in numbers:
            return numbers, values[0]


def load_environment(
    num_examples: int = 1000,
    min_numbers: int = 3,
    max_numbers: int = 5,
    seed: int = 0,
    show_examples: int = 0,
) -> CountdownEnv:
    """Return the environment; example i has `min_numbers` + i mod (number of sizes) numbers."""
    if num_examples < 1 or not 2 <= min_numbers <= max_numbers <= 6:
        raise ConfigError(
            f"`num_examples` is {num_examples}, numbers are from {min_numbers} to {max_numbers}",
            hint="give num_examples >= 1 and 2 <= min_numbers <= max_numbers <= 6",
        )
    sizes = max_numbers - min_numbers + 1

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("countdown", seed, split, index)
            numbers, target = draw_game(rng, min_numbers + index % sizes)
            return {
                "question": f"Numbers: {', '.join(map(str, numbers))}\nTarget: {target}",
                "info": {"numbers": numbers, "target": target},
                "stratum": index % sizes,
            }

        return ProceduralRows(row_at, num_examples)

    rubric = Rubric([right])
    rubric.add_metric(valid)
    return CountdownEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        system_prompt=SYSTEM_PROMPT,
        parser=XMLParser(["answer"]),
        rubric=rubric,
        seed=seed,
        strata=sizes,
        summary="Reach a target number with the given numbers and the four operations.",
        tags=("math", "single-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
