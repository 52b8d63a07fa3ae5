"""The text, the similarity and the form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reverse_text import REFERENCE_SCORES, WORDS, lcs_ratio, load_environment
from wander import ScriptedClient
from wander import load_environment as load_by_name
from wander.errors import ConfigError

SHORT = st.text("ab ", max_size=7)


def slow_lcs(first: str, second: str) -> int:
    """The textbook table, to compare with."""
    row = [0] * (len(second) + 1)
    for a in first:
        before = row
        row = [0]
        for index, b in enumerate(second):
            row.append(before[index] + 1 if a == b else max(before[index + 1], row[-1]))
    return row[-1]


@given(st.text("abc ", max_size=40), st.text("abc ", max_size=40))
def test_the_ratio_is_that_of_the_longest_common_subsequence(first, second):
    if first or second:
        expected = 2 * slow_lcs(first, second) / (len(first) + len(second))
        assert lcs_ratio(first, second) == pytest.approx(expected)


@given(SHORT, SHORT)
def test_the_ratio_is_symmetric_and_one_only_for_equal_texts(first, second):
    ratio = lcs_ratio(first, second)
    assert 0.0 <= ratio <= 1.0
    assert ratio == lcs_ratio(second, first)
    assert (ratio == 1.0) == (first == second)


def test_known_ratios():
    assert lcs_ratio("abcd", "abd") == pytest.approx(6 / 7)
    assert lcs_ratio("abc", "xyz") == lcs_ratio("", "a") == 0.0
    assert lcs_ratio("", "") == 1.0
    assert lcs_ratio("ab" * 50, "b" * 200_000) == pytest.approx(100 / 200_100)


async def played(reply, **arguments):
    env = load_environment(**arguments)
    rollout = await env.rollout(ScriptedClient(reply), env.dataset("eval")[0])
    assert rollout.failure is None
    return rollout


def text_of(request) -> str:
    return request.messages[-1]["content"]


async def test_the_exact_reversal_scores_one():
    rollout = await played(lambda request: f"<reversed_text>\n{text_of(request)[::-1]}\n</reversed_text>")
    assert (rollout.reward, rollout.metrics["exact"], rollout.metrics["format"]) == (1.0, 1.0, 1.0)
    assert rollout.answer == rollout.prompt[-1]["content"][::-1]


@pytest.mark.parametrize(
    ("reply", "form"),
    [("", 0.0), ("no tag", 0.0), ("<reversed_text>open", 0.0), ("<reversed_text></reversed_text>", 1.0)],
)
async def test_no_answer_scores_zero(reply, form):
    rollout = await played([reply])
    assert (rollout.reward, rollout.metrics["exact"], rollout.metrics["format"]) == (0.0, 0.0, form)


async def test_a_right_answer_in_poor_form_keeps_its_similarity():
    rollout = await played(
        lambda request: f"Sure: <reversed_text>{text_of(request)[::-1]}</reversed_text> ok?"
    )
    assert rollout.reward == 1.0
    assert rollout.metrics["format"] == pytest.approx(0.6)


def test_texts_have_the_words_asked_for():
    env = load_environment(num_examples=300, min_words=2, max_words=4)
    counts = [len(example.prompt[-1]["content"].split()) for example in env.dataset("train")]
    assert set(counts) == {2, 3, 4}
    assert len(set(WORDS)) == len(WORDS) > 200
    assert all(word.isascii() and word.islower() for word in WORDS)
    for example in env.dataset("eval").examples(0, 20):
        assert example.answer == example.prompt[-1]["content"][::-1]


def test_equal_seeds_give_equal_bytes_and_splits_differ():
    def whole(**arguments):
        env = load_environment(num_examples=40, **arguments)
        return [[each.model_dump_json() for each in env.dataset(split)] for split in ("train", "eval")]

    assert whole() == whole(seed=0) != whole(seed=1)
    env = load_environment(num_examples=40)
    assert {each.answer for each in env.dataset("train")} != {each.answer for each in env.dataset("eval")}


@pytest.mark.parametrize(
    "arguments", [{"num_examples": 0}, {"min_words": 0}, {"min_words": 5, "max_words": 4}, {"max_words": 2}]
)
def test_arguments_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ConfigError):
        load_environment(**arguments)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("exact reversal", lambda text: text[::-1]),
        ("words in reverse order", lambda text: " ".join(text.split()[::-1])),
        ("the text unchanged", lambda text: text),
    ],
)
async def test_the_reference_scores_are_what_comes_out(name, answer):
    env = load_by_name("reverse-text")
    client = ScriptedClient(lambda request: f"<reversed_text>{answer(text_of(request))}</reversed_text>")
    rollouts = [await env.rollout(client, example) for example in env.dataset("eval")]
    mean = sum(rollout.reward for rollout in rollouts) / len(rollouts)
    assert mean == pytest.approx(REFERENCE_SCORES[name], abs=0.0006)
