"""Calculator: the model answers a sum or a product with the tool that computes it."""

from __future__ import annotations

import json
from typing import Any, Literal

from wander import Messages, Parser, ProceduralRows, Rubric, State, ToolEnv, XMLParser
from wander.errors import ConfigError
from wander.seeding import derived_rng

__all__ = ["load_environment"]

SMALLEST = 2
NEW_EVERY = 4
"""Every `NEW_EVERY`-th number, starting with 3, is excluded from questions with `numbers="known"`."""


def add(a: int, b: int) -> int:
    """Return a + b."""
    return a + b


def multiply(a: int, b: int) -> int:
    """Return a times b."""
    return a * b


def right(completion: Messages, answer: str, parser: Parser) -> bool:
    """Return whether the answer is the result."""
    return bool(parser.parse_answer(completion) == answer)


def called(completion: Messages, state: State) -> bool:
    """Return whether a tool was called with valid arguments."""
    calls = sum(message["role"] == "tool" for message in completion)
    return bool(calls > state["public"].get("tool_errors", 0))


def shown_examples() -> Messages:
    """Return questions that are answered with the tools."""
    shown: Messages = []
    for number, (name, word, a, b) in enumerate(
        (
            ("add", "plus", 41, 57),
            ("multiply", "times", 7, 8),
            ("add", "plus", 36, 3),
            ("multiply", "times", 40, 2),
        )
    ):
        function = {"name": name, "arguments": json.dumps({"a": a, "b": b})}
        result = str(a + b if name == "add" else a * b)
        call = {"id": f"example0{number}", "type": "function", "function": function}
        shown += [
            {"role": "user", "content": f"What is {a} {word} {b}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": result},
            {"role": "assistant", "content": f"<answer>{result}</answer>"},
        ]
    return shown


def load_environment(
    num_examples: int = 1000,
    largest: int = 99,
    *,
    numbers: Literal["all", "known", "new"] = "all",
    show_examples: bool = False,
    seed: int = 0,
) -> ToolEnv:
    """Return the environment; the train and the eval split have `num_examples` questions each.

    A policy that is trained with `numbers="known"` has never seen a question of `numbers="new"`, because each
    of these contains a number that occurs in no known question. `show_examples` puts four answered questions
    before each question, for models that were not trained on the form of a call.
    """
    if num_examples < 1 or largest <= SMALLEST:
        raise ConfigError(
            f"`num_examples` is {num_examples}, `largest` is {largest}",
            hint="give num_examples >= 1 and largest >= 3",
        )
    every = range(SMALLEST, largest + 1)
    new = every[1::NEW_EVERY]
    known = [number for number in every if number not in new]

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("calculator", seed, split, index)
            a, b = (rng.choice(known if numbers == "known" else every) for _ in range(2))
            if numbers == "new":
                a, b = rng.choice(((rng.choice(new), b), (a, rng.choice(new))))
            word, result = rng.choice((("plus", a + b), ("times", a * b)))
            return {"question": f"What is {a} {word} {b}?", "answer": str(result)}

        return ProceduralRows(row_at, num_examples)

    rubric = Rubric([right])
    rubric.add_metric(called)
    return ToolEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=shown_examples() if show_examples else None,
        tools=[add, multiply],
        max_turns=4,
        parser=XMLParser(["answer"], answer_field="answer"),
        rubric=rubric,
        seed=seed,
        summary="Answer a sum or a product with a tool that computes it.",
        tags=("tool", "train", "eval"),
        reference_scores={"the right tool": 1.0},
    )
