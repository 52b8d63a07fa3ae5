"""The marks, the words, and guesses that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander import ScriptedClient
from wordle import load_environment
from wordle.words import WORDS, feedback


@pytest.mark.parametrize(
    ("guess", "word", "marks"),
    [
        ("raise", "layer", "YGXXY"),
        ("allow", "level", "XYYXX"),
        ("level", "allow", "YXXXY"),
        ("llama", "level", "GYXXX"),
    ],
)
def test_known_marks(guess, word, marks):
    assert feedback(guess, word) == marks


@given(st.sampled_from(WORDS), st.sampled_from(WORDS))
def test_marks_tell_how_many_letters_are_shared(guess, word):
    marks = feedback(guess, word)
    assert (marks == "GGGGG") == (guess == word)
    shared = sum(min(guess.count(letter), word.count(letter)) for letter in set(guess))
    assert marks.count("G") + marks.count("Y") == shared


def test_words_are_words_of_one_split():
    assert len(set(WORDS)) == len(WORDS) == 455
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in WORDS)
    env = load_environment(num_examples=2000)
    train, held_out = ({each.answer for each in env.dataset(split)} for split in ("train", "eval"))
    assert train.isdisjoint(held_out)
    assert len(train | held_out) > 440


async def played(replies, **arguments):
    env = load_environment(**arguments)
    example = env.dataset("eval")[0]
    return await env.rollout(ScriptedClient(replies(example.answer)), example)


async def test_the_last_guess_counts_and_what_is_no_guess_costs_a_turn():
    no_guesses = ["", "word", "<guess>toolong</guess>", "<guess>ab1de</guess>", "<guess></guess>"]
    rollout = await played(lambda word: [*no_guesses, f"<guess>{word.upper()}</guess>"])
    assert (rollout.reward, rollout.metrics["guesses"], rollout.stop_reason) == (0.5, 6.0, "found")
    lost = await played(lambda word: [*no_guesses, f"<guess>{word[:4]}z</guess>"])
    assert lost.reward == pytest.approx(0.16)
    assert (lost.metrics["won"], lost.stop_reason) == (0.0, "max_turns_reached")


async def test_a_list_of_words_is_no_guess():
    rollout = await played(lambda word: [f"<guess>{' '.join(WORDS)}</guess>"] * 6)
    assert rollout.reward == 0.0


def test_hints_show_some_letters_in_place():
    example = load_environment(hints=3).dataset("eval")[0]
    form = example.prompt[-1]["content"].removeprefix("The word: ").splitlines()[0].split()
    assert form.count("_") == 2
    assert all(shown in ("_", letter) for shown, letter in zip(form, example.answer.upper(), strict=True))
