"""Long context: the model finds, counts and adds up records of a long text with a Python REPL."""

from __future__ import annotations

import re
from typing import Any, Literal

from wander import Example, Messages, Parser, ProceduralRows, RLMEnv, Rubric
from wander.errors import ConfigError
from wander.seeding import derived_rng

from long_context.players import Player, expert

__all__ = ["LongContextEnv", "load_environment"]

STATIONS_TEXT = """
    Aspen Birk Cedar Dorn Elder Fern Gorse Hazel Ivy Juniper Kelp Larch Moss Nettle Oak Pine Quince Rowan
    Sedge Thorn
"""
STATIONS = STATIONS_TEXT.split()
SYLLABLES_TEXT = """
    ba be bi do du fa fi go ha ke ki lo ma mi no pa pe ra ri so ta ti vo wu za
"""
SYLLABLES = SYLLABLES_TEXT.split()
LINE_CHARS = 49
"""Length of a record, roughly."""
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.000,
    "random player, easy": 0.000,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 1.000,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


class LongContextEnv(RLMEnv):
    """Ends with the final answer."""

    def gold(self, example: Example) -> Player:
        """Return the player that writes the right line of code for each kind of question."""
        return expert


def right(completion: Messages, answer: str, parser: Parser) -> bool:
    """Return whether the final answer is the word or the number."""
    said = parser.parse_answer(completion)
    return said is not None and re.sub(r"[\s.,'\"`]+", "", str(said)).casefold() == answer


def draw_records(seed: int, split: str, index: int, chars: int, level: int) -> dict[str, Any]:
    """Return the row of an example: the records with a hidden note, a question about them, and its answer."""
    rng = derived_rng("long_context", seed, split, index)
    # All draws in one go: `wander check` watches every call, and 10,000 of them a row would take it a minute.
    drawn = rng.randbytes(4 * max(8, chars // LINE_CHARS))
    records = [
        (STATIONS[a % 20], 1 + b % 12, 1 + c % 28, d % 61)
        for a, b, c, d in zip(drawn[::4], drawn[1::4], drawn[2::4], drawn[3::4], strict=True)
    ]
    lines = [
        f"2041-{month:02}-{day:02} station {station}: {rain} mm of rain measured"
        for station, month, day, rain in records
    ]
    noted, word = rng.choice(STATIONS), "".join(rng.choices(SYLLABLES, k=4))
    for station in STATIONS:
        code = word if station == noted else "".join(rng.choices(SYLLABLES, k=4))
        lines.insert(rng.randrange(len(lines) + 1), f"note: the keeper's word at station {station} is {code}")
    station, month, _, _ = rng.choice(records)
    if level == 0:
        question, answer = f"What is the keeper's word at station {noted}?", word
    elif level == 1:
        count = sum((name, at) == (station, month) for name, at, _, _ in records)
        question, answer = f"How many measurements has station {station} in month {month}?", str(count)
    else:
        total = sum(rain for name, _, _, rain in records if name == station)
        question, answer = f"How many mm of rain has station {station} in all?", str(total)
    return {"question": question, "answer": answer, "context": "\n".join(lines), "stratum": level}


def load_environment(
    num_examples: int = 1000,
    chars: int = 120_000,
    levels: int = 3,
    max_turns: int = 8,
    sandbox: Literal["none", "auto", "bwrap"] = "auto",
    seed: int = 0,
    show_examples: int = 0,
) -> LongContextEnv:
    """Return the environment; example i has the kind i mod `levels`: a needle, a count, a sum.

    Code runs without network and files in bubblewrap; with `sandbox="auto"` only where that is installed.
    """
    if num_examples < 1 or chars < 1 or not 1 <= levels <= 3:
        raise ConfigError(
            f"`num_examples` is {num_examples}, `chars` is {chars}, `levels` is {levels}",
            hint="give num_examples >= 1, chars >= 1 and 1 <= levels <= 3",
        )

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            return draw_records(seed, split, index, chars, index % levels)

        return ProceduralRows(row_at, num_examples)

    return LongContextEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        max_turns=max_turns,
        sandbox=sandbox,
        rubric=Rubric([right]),
        seed=seed,
        strata=levels,
        summary="Find, count and add up records in a text of 120,000 characters with a Python REPL.",
        tags=("long-context", "rlm", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
