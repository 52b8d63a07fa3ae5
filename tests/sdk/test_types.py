"""The values that everything passes around: digests, records, state."""

from __future__ import annotations

import json
import tomllib

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from wander.types import (
    Example,
    Rollout,
    SamplingArgs,
    State,
    Usage,
    canonical_json,
    portable_json,
    task_set_digest,
)

EXAMPLE = {"example_id": "a", "index": 0, "seed": 1, "prompt": [{"role": "user", "content": "q"}]}


def test_equal_values_have_equal_bytes():
    assert canonical_json({"b": 1, "a": [1, "é"]}) == '{"a":[1,"é"],"b":1}'
    assert canonical_json({"a": 1, "b": 2}) == canonical_json({"b": 2, "a": 1})
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("inf"))


@given(st.dictionaries(st.text(), st.integers() | st.text(), max_size=5))
def test_the_order_of_keys_does_not_matter(value):
    assert canonical_json(value) == canonical_json(dict(reversed(value.items())))


@given(st.text() | st.lists(st.text() | st.integers(-(2**62), 2**62), max_size=5))
@example('\U0001f600 \x7f \x85 \uffff \u2028 \\ "')
def test_toml_and_yaml_read_portable_json_as_json_does(value):
    text = portable_json(value)
    assert tomllib.loads(f"value = {text}")["value"] == yaml.safe_load(text) == json.loads(text) == value


def test_an_examples_digest_covers_every_field():
    digest = Example(**EXAMPLE).digest()
    assert Example(**EXAMPLE).digest() == digest
    changes = [
        {"example_id": "b"},
        {"index": 1},
        {"seed": 2},
        {"split": "train"},
        {"prompt": []},
        {"answer": "x"},
        {"info": {"a": 1}},
        {"stratum": 0},
        {"columns": {"a": 1}},
    ]
    assert {next(iter(change)) for change in changes} == set(Example.model_fields) - {"fault"}
    assert Example(**EXAMPLE, fault="words that depend on the version of Python").digest() == digest
    assert digest not in {Example(**EXAMPLE | change).digest() for change in changes}


def test_a_task_set_is_ordered():
    first, second = Example(**EXAMPLE), Example(**EXAMPLE | {"example_id": "b"})
    assert task_set_digest([first, second]) != task_set_digest([second, first])
    assert task_set_digest([]) != task_set_digest([first])


def test_unknown_fields_are_rejected_in_records_and_kept_in_sampling():
    with pytest.raises(ValidationError):
        Example(**EXAMPLE, typo=1)
    sampling = SamplingArgs(temperature=0.5, min_p=0.1)
    assert sampling.given() == {"temperature": 0.5, "min_p": 0.1}
    with pytest.raises(ValidationError):
        SamplingArgs(temperature=-1)
    with pytest.raises(ValidationError):
        SamplingArgs(max_tokens=0)


def test_usage_adds_up():
    total = Usage(prompt_tokens=1, completion_tokens=2) + Usage(prompt_tokens=10, completion_tokens=20)
    assert total == Usage(prompt_tokens=11, completion_tokens=22)


def test_a_rollouts_key_is_example_and_index():
    rollout = Rollout(example_id="a", index=2, seed=0, prompt=[], completion=[])
    assert rollout.key == ("a", 2)


def test_a_state_is_a_dictionary_with_names():
    state = State(example=Example(**EXAMPLE), prompt=[1], completion=[2], turns=[3], run_seed=4, own="x")
    assert (state.example.example_id, state.prompt, state.completion) == ("a", [1], [2])
    assert (state.turns, state.run_seed, state["own"]) == ([3], 4, "x")
