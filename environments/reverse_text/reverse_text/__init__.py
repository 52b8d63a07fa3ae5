"""Reverse text: the model writes a short text backwards, character by character."""

from __future__ import annotations

from typing import Any

from wander import Messages, Parser, ProceduralRows, Rubric, SingleTurnEnv, XMLParser
from wander.errors import ConfigError
from wander.seeding import derived_rng

__all__ = ["lcs_ratio", "load_environment"]

SYSTEM_PROMPT = (
    "Reverse the text character by character, spaces included. "
    "Put the result into <reversed_text> and </reversed_text>."
)
REFERENCE_SCORES = {
    "exact reversal": 1.0,
    "words in reverse order": 0.414,
    "the text unchanged": 0.365,
}
"""Mean rewards of scripted answers over the 1,000 default eval examples."""
COMMON_WORDS = """
    able across air apple arm autumn back bag ball bank bear bell bird blue boat book bread bridge bright
    brown cake candle car cat chair cheese child clear clock cloud coat cold cook corn cup dance dark day
    deep desk door dream dress drive dry early earth east egg evening eye face fall farm fast field fire
    fish floor flower fly forest four friend fruit full garden gate glass gold good grass green hand happy
    hard hat head heart high hill honey horse hot house ice island jump key kind king kitchen lake lamp
    large late leaf left letter light line lion long loud love lunch map market milk mirror moon morning
    mountain mouse music name near new night north number ocean old open orange paper park pen picture
    plant play pocket quick quiet rain red rice ring river road rock roof room rope rose round salt sand
    school sea seed seven shadow sheep ship shoe short silver simple sing sister six sky sleep slow small
    smile snow soft song south spoon spring square stand star station stone storm story street strong
    sugar summer sun sweet swim table tall tea ten think tiger time tomorrow tower town train tree true
    under valley village voice walk wall warm water wave west wheel white wide wild wind window winter
    wolf wood word work write yellow young
"""
WORDS = COMMON_WORDS.split()


def lcs_ratio(first: str, second: str) -> float:
    """Return 2 * (longest common subsequence) / (sum of lengths): 1.0 for equal texts, 0.0 for disjoint ones.

    Bit-parallel: one step of integer arithmetic for each character of `second`.
    """
    if not first or not second:
        return float(first == second)
    positions: dict[str, int] = {}
    for index, character in enumerate(first):
        positions[character] = positions.get(character, 0) | 1 << index
    every = (1 << len(first)) - 1
    unmatched = every
    for character in second:
        matching = unmatched & positions.get(character, 0)
        unmatched = ((unmatched + matching) | (unmatched - matching)) & every
    return 2 * (len(first) - unmatched.bit_count()) / (len(first) + len(second))


def similarity(completion: Messages, answer: str, parser: Parser) -> float:
    """Longest-common-subsequence ratio of the answer and the reversed text; 0 without the tag."""
    return lcs_ratio(answer, parser.parse_answer(completion) or "")


def exact(completion: Messages, answer: str, parser: Parser) -> bool:
    """Return whether the answer is the reversed text."""
    return bool(parser.parse_answer(completion) == answer)


def format(completion: Messages, parser: Parser) -> float:
    """Form of the answer: from 0 without the tag to 1 for the tag and nothing else."""
    return parser.get_format_reward_func()(completion)


def load_environment(
    num_examples: int = 1000, min_words: int = 3, max_words: int = 8, seed: int = 0, show_examples: int = 0
) -> SingleTurnEnv:
    """Return the environment; the train and the eval split have `num_examples` texts each.

    A text has between `min_words` and `max_words` common English words.
    """
    if num_examples < 1 or not 1 <= min_words <= max_words:
        raise ConfigError(
            f"`num_examples` is {num_examples}, words are from {min_words} to {max_words}",
            hint="give num_examples >= 1 and 1 <= min_words <= max_words",
        )

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("reverse_text", seed, split, index)
            text = " ".join(rng.choices(WORDS, k=rng.randint(min_words, max_words)))
            return {"question": text, "answer": text[::-1]}

        return ProceduralRows(row_at, num_examples)

    rubric = Rubric([similarity])
    rubric.add_metric(exact)
    rubric.add_metric(format)
    return SingleTurnEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        system_prompt=SYSTEM_PROMPT,
        parser=XMLParser(["reversed_text"], answer_field="reversed_text"),
        rubric=rubric,
        seed=seed,
        summary="Write a short text backwards, character by character.",
        tags=("text", "single-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
