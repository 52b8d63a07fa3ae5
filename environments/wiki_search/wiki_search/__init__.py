"""Wiki search: the model answers questions about an invented country by searching its encyclopedia."""

from __future__ import annotations

import random
from typing import Any

from wander import Example, Messages, Parser, ProceduralRows, Rubric, ToolEnv, XMLParser
from wander.errors import ConfigError
from wander.seeding import derived_rng, derived_seed

from wiki_search.encyclopedia import Country, Encyclopedia
from wiki_search.players import Player, expert

__all__ = ["WikiSearchEnv", "load_environment"]

SYSTEM_PROMPT = (
    "You answer questions about the country of Velmark, which you do not know. "
    "Find the facts in its encyclopedia with the tools. "
    "Put the answer alone (a year or a name) into <answer> and </answer>."
)
REFERENCE_SCORES: dict[str, float] = {
    "random player": 0.000,
    "random player, easy": 0.020,
    "SmolLM2-135M-Instruct": 0.000,
    "SmolLM2-135M-Instruct, easy": 0.000,
    "scripted expert": 1.000,
}
"""Mean rewards of the runs in `reference/`."""


class WikiSearchEnv(ToolEnv):
    """Ends with the first answer that calls no tool."""

    def gold(self, example: Example) -> Player:
        """Return the player that follows the links of a question."""
        return expert


def right(completion: Messages, answer: str, parser: Parser) -> bool:
    """Return whether the answer is the year or the name, apart from case and full stop."""
    said = parser.parse_answer(completion)
    return said is not None and said.strip(" .").casefold() == answer.casefold()


def draw_question(rng: random.Random, country: Country, hops: int) -> tuple[str, str, str]:
    """Return a question that takes `hops` articles, its answer, and the article where it starts."""
    museum = rng.choice(country.museums)
    town = country.towns[museum.town] if hops == 3 else rng.choice(list(country.towns.values()))
    person = rng.choice(list(country.people.values())) if hops == 1 else country.people[town.founder]
    start = {1: person.name, 2: town.name, 3: museum.name}[hops]
    who = {
        1: person.name,
        2: f"the founder of {town.name}",
        3: f"the founder of the town in which the {museum.name} stands",
    }[hops]
    if rng.random() < 0.5:
        return f"In which year was {who} born?", str(person.born), start
    return f"Who taught {who}?", person.teacher, start


def load_environment(
    num_examples: int = 1000, hops: int = 3, max_turns: int = 10, seed: int = 0, show_examples: int = 0
) -> WikiSearchEnv:
    """Return the environment; example i takes 1 + i mod `hops` articles.

    Each seed invents another country."""
    if num_examples < 1 or not 1 <= hops <= 3 or max_turns < 1:
        raise ConfigError(
            f"`num_examples` is {num_examples}, `hops` is {hops}, `max_turns` is {max_turns}",
            hint="give num_examples >= 1, 1 <= hops <= 3 and max_turns >= 1",
        )
    country = Country.invent(seed)
    encyclopedia = Encyclopedia(country.articles())

    def search(query: str) -> list[str]:
        """Return the titles of up to eight articles that hold words of the query, the best match first.

        Args:
            query: some words, such as the name of a person, a town or a museum
        """
        return encyclopedia.search(query)

    def read(title: str) -> str:
        """Return the text of an article.

        Args:
            title: as `search` gives it
        """
        return encyclopedia.read(title)

    def rows(split: str) -> ProceduralRows:
        def row_at(index: int) -> dict[str, Any]:
            rng = derived_rng("wiki_search", seed, split, index)
            while True:  # an article where questions start belongs to only one split
                question, answer, start = draw_question(rng, country, 1 + index % hops)
                if (derived_seed("wiki_search", start) % 4 == 0) == (split == "eval"):
                    break
            return {"question": question, "answer": answer, "stratum": index % hops}

        return ProceduralRows(row_at, num_examples)

    return WikiSearchEnv(
        dataset=rows("train"),
        eval_dataset=rows("eval"),
        few_shot=show_examples,
        tools=[search, read],
        max_turns=max_turns,
        system_prompt=SYSTEM_PROMPT,
        parser=XMLParser(["answer"]),
        rubric=Rubric([right]),
        seed=seed,
        strata=hops,
        summary="Answer questions about an invented country by searching and reading its encyclopedia.",
        tags=("search", "tool", "train", "eval"),
        reference_scores=REFERENCE_SCORES,
    )
