"""Math tools: the model answers questions about whole numbers with tools that calculate and factorise."""

from __future__ import annotations

import random
from typing import Any, Literal

from wander import Example, Messages, Parser, ProceduralRows, Rubric, ToolEnv, XMLParser
from wander.errors import ConfigError
from wander.seeding import derived_rng, derived_seed

from math_tools.players import Player, expert

__all__ = ["MathToolsEnv", "calculate", "load_environment", "prime_factors"]

SYSTEM_PROMPT = "Work with the tools, one step at a time. Put the result into <answer> and </answer>."
LARGEST = 10**12
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.000,
    "random player, easy": 0.140,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.917,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


class MathToolsEnv(ToolEnv):
    """Ends with the first answer that calls no tool."""

    def gold(self, example: Example) -> Player:
        """Return the player that calls the right tools in the right order."""
        return expert


def calculate(a: int, operation: Literal["+", "-", "*", "//", "%"], b: int) -> int:
    """Return the result of one operation on whole numbers.

    Args:
        a: left number
        operation: `//` divides and rounds down, `%` is the remainder
        b: right number
    """
    if max(abs(a), abs(b)) > LARGEST:
        raise ValueError(f"numbers go from -{LARGEST} to {LARGEST}")
    match operation:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
    return a % b


def prime_factors(n: int) -> list[int]:
    """Return the prime factors of a number, ascending, each as often as it divides.

    Args:
        n: from 2 to 100000000
    """
    if not 2 <= n <= 10**8:
        raise ValueError("`n` goes from 2 to 100000000")
    factors, divisor = [], 2
    while divisor * divisor <= n:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return [*factors, n] if n > 1 else factors


def right(completion: Messages, answer: str, parser: Parser) -> bool:
    """Return whether the answer is the result."""
    said = parser.parse_answer(completion)
    return said is not None and said.replace(",", "") == answer


def draw_question(rng: random.Random, level: int, low: int, high: int) -> tuple[str, int]:
    """Return a question that takes `level` + 1 calls and its answer; the last level has other numbers."""
    a, b = rng.randint(low, high), rng.randint(low, high)
    if level == 0:
        operation = rng.choice("+-*")
        return f"What is {a} {operation} {b}?", calculate(a, operation, b)  # type: ignore[arg-type]
    if level == 1:
        c = rng.randint(3, high)
        return f"What is the remainder of {a} * {b} divided by {c}?", a * b % c
    a, b, c = a % 90 + 10, b % 90 + 10, rng.randint(1, 99)
    question = (
        f"What is the sum of the prime factors of {a} * {b} + {c}, each counted as often as it divides?"
    )
    return question, sum(prime_factors(a * b + c))


def load_environment(
    num_examples: int = 1000,
    levels: int = 3,
    digits: int = 4,
    *,
    largest: int = 0,
    show_examples: int = 0,
    seed: int = 0,
) -> MathToolsEnv:
    """Return the environment; example i takes 1 + i mod `levels` calls.

    Numbers have `digits` digits, or with `largest` go from 2 to it.
    """
    if num_examples < 1 or not 1 <= levels <= 3 or not 1 <= digits <= 6 or not (largest or 9) >= 9:
        raise ConfigError(
            f"`num_examples` {num_examples}, `levels` {levels}, `digits` {digits}, `largest` {largest}",
            hint="give num_examples >= 1, 1 <= levels <= 3, 1 <= digits <= 6 and no `largest` under 9",
        )
    low, high = (2, largest) if largest else (10 ** (digits - 1) + (digits == 1), 10**digits - 1)

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("math_tools", seed, split, index)
            while True:  # a question belongs to only one split
                question, result = draw_question(rng, index % levels, low, high)
                if (derived_seed("math_tools", question) % 5 == 0) == (split == "eval"):
                    break
            return {"question": question, "answer": str(result), "stratum": index % levels}

        return ProceduralRows(row_at, num_examples)

    return MathToolsEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        tools=[calculate, prime_factors],
        max_turns=8,
        system_prompt=SYSTEM_PROMPT,
        few_shot=show_examples,
        parser=XMLParser(["answer"]),
        rubric=Rubric([right]),
        seed=seed,
        strata=levels,
        summary="Answer questions about whole numbers with tools that calculate and factorise.",
        tags=("math", "tool", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
