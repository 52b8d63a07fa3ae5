"""Alphabet sort: the model sorts names by surname while more of them arrive turn by turn."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from wander import Example, Messages, MultiTurnEnv, Parser, ProceduralRows, Rubric, State, XMLParser, stop
from wander.errors import ConfigError
from wander.seeding import derived_rng

from alphabet_sort.players import Player, by_surname, expert

__all__ = ["AlphabetSortEnv", "load_environment"]

SYSTEM_PROMPT = (
    "Sort all names you were given so far by surname. "
    "Put them into <sorted> and </sorted>, one a line, and write nothing else."
)
FIRST_NAMES_TEXT = """
    Ada Amir Bela Carl Dora Emil Fatima Greta Hugo Ines Jonas Kira Leo Mara Nils Olga Pavel Quinn Rosa
    Said Tara Umut Vera Wim Xenia Yuri Zoe
"""
FIRST_NAMES = FIRST_NAMES_TEXT.split()
SURNAMES_TEXT = """
    Abbott Acosta Adler Ahmed Baker Banda Bauer Becker Bell Brandt Braun Burke Castro Chen Cohen Costa
    Cruz Dahl Davis Diaz Dietz Dubois Ebert Evans Faber Fischer Flores Fuchs Garcia Gomez Gray Gupta Haas
    Hansen Hart Hoffman Horn Hughes Ibarra Ito Jansen Jensen Jung Kaiser Kang Keller Khan Klein Kovacs
    Lang Larsen Lehmann Lopez Lund Maier Marsh Meyer Moreno Murphy Nagy Nguyen Novak Okafor Olsen Ortiz
    Osei Park Patel Perez Petrov Pinto Quist Ramos Reyes Rivera Roth Russo Sato Schmidt Silva Singh
    Sokolov Stein Suzuki Tanaka Thomas Torres Turner Ueda Urban Vargas Vogel Wagner Walsh Weber Wolf
    Yamada Yilmaz Young Zhang Ziegler Zimmer
"""
SURNAMES = SURNAMES_TEXT.split()
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.155,
    "random player, easy": 0.480,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.458,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


class AlphabetSortEnv(MultiTurnEnv):
    """Hands out one batch of names a turn."""

    def env_response(self, messages: Messages, state: State) -> Messages:
        """Bring the next batch."""
        return [{"role": "user", "content": asked(state["info"]["batches"][len(state.turns)], more=True)}]

    @stop
    def all_handed_out(self, state: State) -> bool:
        """Return whether every batch has been answered."""
        return len(state.turns) == len(state["info"]["batches"])

    def gold(self, example: Example) -> Player:
        """Return the player that sorts."""
        return expert


def asked(names: list[str], *, more: bool) -> str:
    """Return what the user says about a batch."""
    return "\n".join(["More names:" if more else "Names:", *(f"- {name}" for name in names)])


def order_score(said: list[str], expected: list[str]) -> float:
    """Return 1 for the right order, about 0 for a random one (Kendall's tau above 0); 0 for other names."""
    if sorted(said) != sorted(expected):
        return 0.0
    rank = {name: place for place, name in enumerate(expected)}
    pairs = [rank[a] < rank[b] for a, b in combinations(said, 2)]
    return max(0.0, 2 * sum(pairs) / len(pairs) - 1)


def turn_scores(state: State, parser: Parser) -> list[float]:
    """Return the score of every batch; a batch without an answer scores 0."""
    batches: list[list[str]] = state["info"]["batches"]
    scores = [0.0] * len(batches)
    for place, turn in enumerate(state.turns):
        expected = sorted((name for batch in batches[: place + 1] for name in batch), key=by_surname)
        said = parser.parse_answer([turn.message]) or ""
        scores[place] = order_score([line.strip() for line in said.splitlines() if line.strip()], expected)
    return scores


def order(state: State, parser: Parser) -> float:
    """Return the mean score of the turns."""
    scores = turn_scores(state, parser)
    return sum(scores) / len(scores)


def exact(state: State, parser: Parser) -> bool:
    """Return whether every turn's list is right."""
    return min(turn_scores(state, parser)) == 1.0


def load_environment(
    num_examples: int = 1000, turns: int = 3, names: int = 4, seed: int = 0, show_examples: int = 0
) -> AlphabetSortEnv:
    """Return the environment; example i has 1 + i mod `turns` batches of `names` names."""
    if num_examples < 1 or turns < 1 or names < 2 or turns * names > len(SURNAMES):
        raise ConfigError(
            f"`num_examples` is {num_examples}, `turns` is {turns}, `names` is {names}",
            hint=f"give num_examples >= 1, turns >= 1, names >= 2 and at most {len(SURNAMES)} names in all",
        )

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("alphabet_sort", seed, split, index)
            count = names * (1 + index % turns)
            people = [f"{rng.choice(FIRST_NAMES)} {surname}" for surname in rng.sample(SURNAMES, count)]
            batches = [people[start : start + names] for start in range(0, count, names)]
            return {
                "question": asked(batches[0], more=False),
                "answer": "\n".join(sorted(people, key=by_surname)),
                "info": {"batches": batches},
                "stratum": index % turns,
            }

        return ProceduralRows(row_at, num_examples)

    rubric = Rubric([order])
    rubric.add_metric(exact)
    return AlphabetSortEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        max_turns=turns,
        system_prompt=SYSTEM_PROMPT,
        parser=XMLParser(["sorted"], answer_field="sorted"),
        rubric=rubric,
        seed=seed,
        strata=turns,
        summary="Sort names by surname while more names arrive turn by turn.",
        tags=("text", "multi-turn", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
