"""The country of Velmark, invented from a seed, and the search in its encyclopedia."""

from __future__ import annotations

import difflib
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from wander.seeding import derived_rng

FIRST_NAMES_TEXT = """
    Adla Berin Corvo Delia Edrik Fenna Galo Hedda Ivo Jorun Katla Lorn Mirel Nadja Osk Petra Rurik Sanna
    Tove Ulf Vesna Wido Yrsa Zoran
"""
FIRST_NAMES = FIRST_NAMES_TEXT.split()
SURNAMES_TEXT = """
    Aldervan Brask Cendrin Dorneth Eskil Farrow Grendahl Holm Istvane Jarrow Kestrin Lauritz Morvane Nesk
    Orlund Pellam Quell Rasmund Sorvik Tarnow Uddin Varga Westrel Ylander
"""
SURNAMES = SURNAMES_TEXT.split()
BEGINNINGS_TEXT = """
    Ar Bel Cor Dun El Fal Gar Hol Ist Kar Lin Mor Nor Ost Pel Rav Sel Tor Ul Ver Wes Zel
"""
BEGINNINGS = BEGINNINGS_TEXT.split()
ENDINGS_TEXT = """
    bach den ford gard haven holt mere mouth stead vik
"""
ENDINGS = ENDINGS_TEXT.split()
TRADES_TEXT = """
    surveyor composer botanist printer shipwright astronomer painter physician engineer poet
"""
TRADES = TRADES_TEXT.split()
KINDS = ["Museum of Glass", "Museum of Tides", "Clock Museum", "Map Room", "Salt Museum", "Museum of Looms"]


@dataclass(frozen=True)
class Person:
    """Somebody with an article."""

    name: str
    born: int
    trade: str
    teacher: str
    home: str


@dataclass(frozen=True)
class Town:
    """A town with its founder."""

    name: str
    founded: int
    founder: str
    people: int


@dataclass(frozen=True)
class Museum:
    """A museum with its town."""

    name: str
    town: str
    opened: int


@dataclass(frozen=True)
class Country:
    """All that is true in Velmark."""

    people: dict[str, Person]
    towns: dict[str, Town]
    museums: list[Museum]

    @classmethod
    def invent(cls, seed: int) -> Country:
        """Return the country of a seed: 140 people, 80 towns, 80 museums."""
        rng = derived_rng("velmark", seed)
        names = rng.sample([f"{first} {last}" for first in FIRST_NAMES for last in SURNAMES], 140)
        places = rng.sample([first + last for first in BEGINNINGS for last in ENDINGS], 80)
        people = {
            name: Person(
                name,
                rng.randint(1601, 1899),
                rng.choice(TRADES),
                rng.choice(names[:at] or names[1:]),
                rng.choice(places),
            )
            for at, name in enumerate(names)
        }
        founders = rng.sample(names, 80)
        towns = {
            place: Town(place, people[founder].born + rng.randint(20, 60), founder, rng.randint(800, 90_000))
            for place, founder in zip(places, founders, strict=True)
        }
        museums = [
            Museum(f"{place} {rng.choice(KINDS)}", rng.choice(places), rng.randint(1900, 1990))
            for place in places
        ]
        return cls(people, towns, museums)

    def articles(self) -> dict[str, str]:
        """Return the text of every article by its title."""
        texts = {}
        for person in self.people.values():
            texts[person.name] = (
                f"{person.name} was a {person.trade} of Velmark, born in {person.born} and raised in "
                f"{person.home}. The trade was learned from {person.teacher}."
            )
        for town in self.towns.values():
            texts[town.name] = (
                f"{town.name} is a town of Velmark with {town.people} inhabitants. "
                f"It was founded in {town.founded} by {town.founder}."
            )
        for museum in self.museums:
            texts[museum.name] = f"The {museum.name} opened in {museum.opened}. It stands in {museum.town}."
        return texts


class Encyclopedia:
    """Articles in a full-text index in memory, read-only once it is built."""

    def __init__(self, articles: Mapping[str, str]) -> None:
        self._articles = dict(articles)
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute("CREATE VIRTUAL TABLE article USING fts5(title, body)")
        self._index.executemany("INSERT INTO article VALUES (?, ?)", sorted(articles.items()))

    def search(self, query: str) -> list[str]:
        """Return up to eight titles, ranked by BM25 with words of the title counting five times."""
        words = re.findall(r"\w+", query)[:20]
        if not words:
            raise ValueError("the query holds no word")
        found = self._index.execute(
            "SELECT title FROM article WHERE article MATCH ? "
            "ORDER BY round(bm25(article, 5.0, 1.0), 6), title LIMIT 8",
            [" OR ".join(f'"{word}"' for word in words)],
        )
        return [title for (title,) in found]

    def read(self, title: str) -> str:
        """Return the text of an article; raises `KeyError` with near titles."""
        if title not in self._articles:
            near = difflib.get_close_matches(title, self._articles, n=3) or self.search(title)[:3]
            raise KeyError(f"there is no article `{title}`; near: {', '.join(near) or 'none'}")
        return self._articles[title]
