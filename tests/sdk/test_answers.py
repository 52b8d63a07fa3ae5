"""Boxed, hash-marked and JSON answers: what is found, and that no text makes them raise or crawl."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processor_time import seconds_of
from wander.parsers import MaybeThinkParser
from wander.rubrics.boxed import boxed_answers, extract_boxed_answer, extract_json_answer

MARKS = st.text(alphabet='\\{}[]"boxedf #`\n1a,:', max_size=60)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
JSON_ANSWERS = st.lists(JSON_VALUES, max_size=4) | st.dictionaries(st.text(), JSON_VALUES, max_size=4)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
        (r"\boxed{3} and an open \boxed{4", "3"),
        (r"\boxed{a \boxed{b}", "b"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\fbox{ 5 }", "5"),
        (r"\boxed {6}", "6"),
    ],
)
def test_the_last_complete_boxed_text_is_the_answer(text, answer):
    assert extract_boxed_answer(text) == answer
    assert extract_boxed_answer(text, strict=True) == answer


def test_without_a_boxed_text_strictness_decides():
    assert extract_boxed_answer("42") == "42"
    assert extract_boxed_answer("42", strict=True) == ""
    assert extract_boxed_answer(r"\boxed{42", strict=True) == ""


@given(st.text(alphabet=st.characters(exclude_characters="{}\\")), st.text(alphabet="ab \n{}"))
def test_any_answer_without_braces_survives_its_box(answer, before):
    assert extract_boxed_answer(f"{before}\\boxed{{{answer}}}", strict=True) == answer.strip()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"a": 1}', {"a": 1}),
        ('first {"a": 1} then {"a": 2} done', {"a": 2}),
        ('```json\n{"a": 1}\n```\nas in {"b": 2}', {"a": 1}),
        ("```python\nx = [1]\n```", [1]),
        ('{"text": "a } in \\" quotes"} ok', {"text": 'a } in " quotes'}),
        ("an open { and [1, 2]", [1, 2]),
        ('a 5" pipe, then {"a": [1, {"b": 2}]}', {"a": [1, {"b": 2}]}),
        ("} ] [3]", [3]),
    ],
)
def test_the_last_json_value_is_the_answer(text, answer):
    assert extract_json_answer(text) == answer


@pytest.mark.parametrize("text", ["", "42", '"text"', "null", "[NaN]", "{broken", "{'a': 1}"])
def test_text_without_an_object_or_array_gives_the_default(text):
    assert extract_json_answer(text) is None
    assert extract_json_answer(text, default={}) == {}


@given(JSON_ANSWERS, st.text(alphabet="ab .,\n"))
def test_any_json_answer_is_found_in_prose(value, prose):
    assert extract_json_answer(f"{prose}{json.dumps(value)} {prose}") == value


@given(MARKS)
def test_no_text_makes_an_extractor_raise(text):
    assert isinstance(extract_boxed_answer(text), str)
    assert extract_json_answer(text, default=[]) is not None
    assert all(box == box.strip() for box in boxed_answers(text))


@pytest.mark.parametrize("piece", ["{", "[", "\\boxed{", '{"', "[{", "\\boxed{}", '{"a":', "[1]", "}"])
def test_extraction_time_grows_linearly(piece):
    def seconds(times: int) -> float:
        text = piece * times
        return seconds_of(lambda: (extract_boxed_answer(text), extract_json_answer(text)))

    assert seconds(40_000) < 120 * max(seconds(2_000), 1e-4)


def test_an_extractor_serves_as_a_parser():
    parser = MaybeThinkParser(extract_boxed_answer)
    assert (
        parser.parse_answer([{"role": "assistant", "content": r"<think>\boxed{1}</think>\boxed{2}"}]) == "2"
    )
