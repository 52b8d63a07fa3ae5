"""Answers in the ways in which people and models write mathematics are read as what they mean."""

# ruff: noqa: E501 - a row for each answer

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander.rubrics.math import MathRubric
from wander.rubrics.math_text import clean_math
from wander.rubrics.math_worker import equal


def same(answer: str, response: str) -> bool:
    answer, response = clean_math(answer), clean_math(response)
    return answer == response or equal(answer, response)


@pytest.mark.parametrize(
    ("answer", "responses"),
    {
        "5": ["5.", "5,", "5\\", "5 \\ ", "5;", "\\,5\\,", "$5$", "\\$5", "€5", "5 €", "\\text{\\$}5", "USD 5", "5 dollars"],
        "1000": ["1\\,000", "1{,}000", "1,000", "1~000", "1\u202f000", "1\\;000", "1,\\!000", "1 000", "1\\,000.", "\\$1,000"],
        "1234567.89": ["1\\,234\\,567.89", "1,234,567.89", "1 234 567.89", "1.23456789e6"],
        "3/2": ["1\\frac{1}{2}", "1 1/2", "1\\ 1/2", "1½", "1 and 1/2", "1.5", "1\\tfrac12."],
        "-3/2": ["-1 1/2", "-1\\frac{1}{2}", "−3/2"],
        "1500": ["1.5e3", "1.5E+3", "1.5\\times 10^3", "1.5 \\cdot 10^{3}", "1.5 x 10^3", "1.5 × 10³", "1.5*10**3"],
        "0.0015": ["1.5e-3", "1.5\\times10^{-3}", "1.5 × 10⁻³"],
        "x^2": ["x^2.", "x^{2},"],
        "(1,2)": ["(1, 2).", "\\left(1,2\\right)"],
        "\\infty": ["\\infty."],
        "120": ["5!"],
    }.items(),
)  # fmt: skip
def test_every_form_of_an_answer_counts(answer: str, responses: list[str]) -> None:
    for response in responses:
        assert same(answer, response), response
        assert same(response, answer), response


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("0", "1\\,000"),  # which math-verify reads as a product
        ("5", "5!"),
        ("5", "-5"),
        ("1000", "1\\,00"),
        ("1000", "1\\,0000"),
        ("1,200", "(1,200)"),
        ("1/3", "0.333"),
        ("0.333", "0.333..."),
        ("3/2", "11/2"),
        ("15", "1.5e3"),
        ("1.5", "1,5"),
        ("x", "y."),
    ],
)
def test_other_answers_do_not_count(answer: str, response: str) -> None:
    assert not same(answer, response)


FORMS = [
    lambda n: f"{n}.",
    lambda n: f"{n:,}",
    lambda n: f"{n:,}".replace(",", "\\,"),
    lambda n: f"{n:,}".replace(",", "{,}"),
    lambda n: f"{n:,}".replace(",", "\u2009") + " ",
    lambda n: f"\\${n:,}",
    lambda n: f"{n:,} dollars.",
    lambda n: f"£{n}",
    lambda n: f"{n}e0",
    lambda n: f"{n} \\times 10^0,",
    lambda n: f"{n}\\",
]


@given(st.integers(0, 10**9), st.sampled_from(FORMS), st.sampled_from(FORMS), st.integers(1, 10**9))
def test_equal_numbers_match_in_every_form(number: int, one, other, more: int) -> None:  # type: ignore[no-untyped-def]
    assert same(one(number), other(number))
    assert not same(one(number), other(number + more))


@given(st.integers(1, 99), st.integers(1, 20), st.integers(2, 20))
def test_mixed_numbers_are_read(whole: int, numerator: int, denominator: int) -> None:
    value = whole + Fraction(numerator, denominator)
    assert same(str(value), f"{whole} {numerator}/{denominator}")


@given(st.text(max_size=60) | st.text(st.sampled_from("0123456789\\,.;:{}$ ~eE/x×^*()"), max_size=30))
def test_cleaning_text_twice_changes_nothing(text: str) -> None:
    cleaned = clean_math(text)
    assert clean_math(cleaned) == cleaned


async def test_the_rubric_cleans_both_sides() -> None:
    rubric = MathRubric()
    assert rubric.parser is not None
    completion = [{"role": "assistant", "content": "so \\boxed{\\$1\\,000.}"}]
    assert await rubric.correct_answer(completion, "1000", rubric.parser) == 1.0
    assert await rubric.correct_answer(completion, "0", rubric.parser) == 0.0
    await rubric.close()
