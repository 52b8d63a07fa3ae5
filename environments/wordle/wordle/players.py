"""Scripted players: `expert` guesses words that fit all marks, and `random` guesses any word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

from wordle.words import WORDS, feedback

Player = Callable[[ModelRequest], str]

MARKED = re.compile(r"((?:[A-Z] ){4}[A-Z])\n((?:[GYX] ){4}[GYX])")
FORM = re.compile(r"The word: ([A-Z_ ]+)\n")


def fitting(request: ModelRequest) -> list[str]:
    """Return the words that fit every mark and the letters shown."""
    said = "\n".join(message_text(each) for each in request.own_messages if each["role"] == "user")
    marked = [
        (guess.replace(" ", "").lower(), marks.replace(" ", "")) for guess, marks in MARKED.findall(said)
    ]
    shown = FORM.search(said)
    form = re.compile(shown[1].replace(" ", "").replace("_", ".").lower() if shown else ".....")
    return [
        word
        for word in WORDS
        if form.fullmatch(word) and all(feedback(guess, word) == marks for guess, marks in marked)
    ]


def expert(request: ModelRequest) -> str:
    """Guess the word that fits and leaves the fewest others on average."""
    words = fitting(request)
    guess = (
        "raise"
        if len(words) == len(WORDS)
        else min(words, key=lambda word: (expected_left(word, words), word))
    )
    return f"<guess>{guess}</guess>"


def expected_left(guess: str, words: list[str]) -> int:
    """Return the sum of the squared sizes of the classes into which a guess divides the words."""
    return sum(count * count for count in Counter(feedback(guess, word) for word in words).values())


def random(request: ModelRequest) -> str:
    """Guess any word."""
    return f"<guess>{derived_rng('wordle player', request.seed).choice(WORDS)}</guess>"
