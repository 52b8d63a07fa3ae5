"""Rows become examples: every source, every column, every mistake."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander import SingleTurnEnv
from wander.data_sources import file_rows
from wander.dataset import Dataset, ProceduralRows
from wander.errors import DatasetError
from wander.seeding import derived_seed
from wander.types import task_set_digest


def questions(count: int) -> list[dict]:
    return [{"question": f"q{index}"} for index in range(count)]


def generator():
    yield from questions(3)


class Lazy:
    """A sequence that remembers which rows were read, as a memory-mapped table would."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict:
        self.read.append(index)
        return {"question": f"q{index}"}


@pytest.mark.parametrize(
    "rows",
    [
        questions(3),
        tuple(questions(3)),
        generator,
        generator(),
        iter(questions(3)),
        lambda: questions(3),
        Lazy(3),
        lambda: Lazy(3),
        ProceduralRows(lambda index: {"question": f"q{index}"}, 3),
        lambda: ProceduralRows(lambda index: {"question": f"q{index}"}, 3),
    ],
    ids=["list", "tuple", "function", "generator", "iterator", "builder", "table", "lazy", "rows", "made"],
)
def test_every_source_gives_the_same_examples(rows):
    dataset = Dataset(rows)
    assert [example.prompt[0]["content"] for example in dataset.examples(1, 5)] == ["q1", "q2"]
    assert dataset.length == 3
    assert [example.example_id for example in dataset] == ["0", "1", "2"]
    assert dataset.examples() == dataset.examples(0, 3)
    assert dataset.examples(3) == dataset.examples(7, 2) == []
    assert dataset[2].index == 2
    for index in (3, -1):
        with pytest.raises(IndexError):
            dataset[index]


def test_a_builder_runs_once_and_only_when_rows_are_needed():
    built = []

    def build():
        built.append(1)
        return questions(2)

    dataset = Dataset(build)
    assert built == []
    assert (dataset.length, len(dataset.examples()), len(list(dataset))) == (2, 2, 2)
    assert built == [1]


def test_only_requested_rows_are_read():
    rows = Lazy(10**9)
    dataset = Dataset(rows)
    assert dataset.length == 10**9
    assert dataset[123_456_789].example_id == "123456789"
    assert rows.read == [123_456_789]

    def endless():
        index = 0
        while True:
            yield {"question": f"q{index}"}
            index += 1

    assert [each.index for each in Dataset(endless).examples(2, 2)] == [2, 3]


def test_an_endless_dataset_has_no_length_and_no_end():
    dataset = Dataset(ProceduralRows(lambda index: {"question": str(index)}))
    assert dataset.length is None
    assert dataset[10**6].prompt[0]["content"] == "1000000"
    with pytest.raises(DatasetError, match="is endless") as caught:
        dataset.examples()
    assert caught.value.hint == "pass the number of examples"
    assert SingleTurnEnv(ProceduralRows(lambda index: {"question": "q"})).info.train_examples is None


def test_known_and_other_columns_are_read():
    row = {
        "prompt": [{"role": "user", "content": "hi"}],
        "answer": {"any": ["json"]},
        "info": {"a": 1},
        "example_id": 42,
        "seed": 7,
        "stratum": 2,
        "difficulty": "hard",
        "task": "greeting",
    }
    example = Dataset([row], split="train")[0]
    assert (example.example_id, example.seed, example.stratum, example.split) == ("42", 7, 2, "train")
    assert (example.answer, example.info) == ({"any": ["json"]}, {"a": 1})
    assert example.columns == {"difficulty": "hard", "task": "greeting"}
    assert type(example).model_validate(example.model_dump()) == example


def test_absent_columns_have_defaults():
    example = Dataset([{"question": 5, "answer": None, "info": None, "seed": None}], seed=9)[0]
    assert (example.answer, example.info, example.stratum, example.columns) == ("", {}, None, {})
    assert example.seed == derived_seed("example", 9, "eval", "0")
    assert example.prompt == [{"role": "user", "content": "5"}]


def test_seeds_differ_by_environment_seed_split_and_row():
    seeds = {
        example.seed
        for split in ("train", "eval")
        for seed in (0, 1)
        for example in Dataset(questions(3), split=split, seed=seed)
    }
    assert len(seeds) == 12


def test_info_may_be_json_text():
    assert Dataset([{"question": "q", "info": '{"a": [1]}'}])[0].info == {"a": [1]}
    assert Dataset([{"question": "q", "info": ""}])[0].info == {}


def test_the_prompt_is_built_from_system_prompt_few_shot_and_question():
    shots = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    arguments = {"system_prompt": "Add.", "few_shot": shots}
    built = Dataset([{"question": "2+2"}], **arguments)[0].prompt
    assert [message["content"] for message in built] == ["Add.", "1+1", "2", "2+2"]
    own = Dataset([{"prompt": "2+2", "question": "ignored"}], **arguments)[0].prompt
    assert [message["content"] for message in own] == ["Add.", "2+2"]
    system = [{"role": "system", "content": "Mine."}, {"role": "user", "content": "2+2"}]
    assert Dataset([{"prompt": system}], **arguments)[0].prompt == system
    built[1]["content"] = "changed"
    assert shots[0]["content"] == "1+1"


def test_examples_are_copies_of_the_rows():
    rows = [{"question": "q", "info": {"list": [1]}}]
    dataset = Dataset(rows)
    example = dataset[0]
    rows[0]["info"]["list"].append(2)
    assert example.info == {"list": [1]}
    assert dataset[0] is example


def test_rows_keep_their_own_keys():
    rows = [{"question": "a", "info": {"x": 1}}, {"question": "b", "info": {"y": 2}, "extra": 1}]
    first, second = Dataset(rows)
    assert (first.info, second.info) == ({"x": 1}, {"y": 2})
    assert (first.columns, second.columns) == ({}, {"extra": 1})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("text", "row 0 of the eval dataset is a `str`, not a dictionary"),
        ({}, "has neither `prompt` nor `question`"),
        ({"answer": "4"}, "has neither `prompt` nor `question`"),
        ({"prompt": []}, "`prompt` must be text or a non-empty list"),
        ({"prompt": 5}, "`prompt` must be text or a non-empty list"),
        ({"prompt": ["hi"]}, "message 0 of `prompt` has no known `role`"),
        ({"prompt": [{"role": "robot", "content": "hi"}]}, "message 0 of `prompt` has no known `role`"),
        ({"question": "q", "info": "{"}, "`info` is text but not JSON"),
        ({"question": "q", "info": [1]}, "`info` must be a dictionary"),
        ({"question": "q", "info": "[1]"}, "`info` must be a dictionary"),
        ({"question": "q", "seed": "1"}, "`seed` must be a whole number"),
        ({"question": "q", "seed": True}, "`seed` must be a whole number"),
        ({"question": "q", "stratum": 0.5}, "`stratum` must be a whole number"),
        ({"question": "q", "when": datetime.date(2026, 1, 1)}, "column `when` is not a JSON value"),
        ({"question": "q", "answer": float("nan")}, "column `answer` is not a JSON value"),
        ({"question": "q", 5: "x"}, "a column whose name is not text"),
        ({"question": "a \udc00 b"}, "row 0 of the eval dataset: column `question` is not a JSON value"),
        ({"question": "q", "deep": [{"x": ["\ud83d"]}]}, "column `deep` is not a JSON value"),
        ({"question": "q", "info": {"\ud83d": 1}}, "column `info` is not a JSON value"),
        ({"question": "q", "info": '{"a": "\\ud83d"}'}, "`info` is text but not JSON"),
        ({"question": "q", "info": '{"a": NaN}'}, "`info` is text but not JSON"),
        ({"question": "q", "name\ud83d": 1}, r"column `name\ud83d` is not a JSON value"),
        ({"question": "q", "answer": -(10**4400)}, "column `answer` is not a JSON value"),
        ({"question": "q", "sizes": [10**5000]}, "column `sizes` is not a JSON value"),
        ({"prompt": [{"role": "user"}]}, "message 0 of `prompt` has no `content`"),
        ({"prompt": [{"role": "user", "content": None}]}, "message 0 of `prompt` has no `content`"),
        ({"prompt": [{"role": "user", "content": 5}]}, "message 0 of `prompt` has no `content`"),
    ],
)
def test_an_invalid_row_is_reported(row, said):
    with pytest.raises(DatasetError) as caught:
        Dataset([row])[0]
    assert said in str(caught.value)


def test_a_bad_row_does_not_spoil_the_others():
    dataset = Dataset([{"question": "a"}, {}, {"question": "c"}])
    assert (dataset[0].example_id, dataset[2].example_id) == ("0", "2")
    with pytest.raises(DatasetError, match="row 1"):
        dataset.examples()


BAD_ROWS = [
    {},
    "text",
    {"question": "\ud800"},
    {"question": "q", "example_id": "\udfff"},
    {"question": "q", "answer": 10**5000},
    {"question": "q", "seed": "seven"},
    {"prompt": [{"role": "user"}]},
    {"prompt": []},
    {"question": "q", "column": object()},
]


@given(st.lists(st.sampled_from([None, *BAD_ROWS]), max_size=12), st.integers(0, 2))
def test_faulty_rows_keep_their_places_and_change_no_other(kinds, source):
    rows = [{"question": f"{place}?"} if kind is None else kind for place, kind in enumerate(kinds)]
    good = [{"question": f"{place}?"} for place in range(len(kinds))]
    given_as = [rows, (row for row in rows), ProceduralRows(lambda index: rows[index], len(rows))][source]
    found = Dataset(given_as).examples(keep_faulty=True)
    assert [example.index for example in found] == list(range(len(rows)))
    for example, kind, expected in zip(found, kinds, Dataset(good), strict=True):
        if kind is None:
            assert example == expected
        else:
            assert f"row {example.index} of the eval dataset" in example.fault
            assert (example.prompt, example.example_id) == ([], str(example.index))


def test_a_faulty_row_keeps_an_id_of_its_own_that_names_no_other_row():
    rows = [{"example_id": "first"}, {"question": "q", "example_id": "second"}]
    assert [one.example_id for one in Dataset(rows).examples(keep_faulty=True)] == ["first", "second"]
    with pytest.raises(DatasetError, match="share the example_id"):
        Dataset([{"example_id": "a"}, {"question": "q", "example_id": "a"}]).examples(keep_faulty=True)
    with pytest.raises(DatasetError, match="share the example_id"):
        Dataset([{}, {"question": "q", "example_id": 0}]).examples(keep_faulty=True)


def test_an_invalid_json_line_is_one_faulty_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"question": "a"}\n{"question": \n{"question": "\xff"}\n{"question": "b"}\n')
    found = Dataset(file_rows(path)).examples(keep_faulty=True)
    assert [bool(one.fault) for one in found] == [False, True, True, False]


def test_an_exception_of_a_row_generator_is_reported_and_ends_it():
    def rows():
        yield {"question": "a"}
        raise DatasetError("the source ended early")

    with pytest.raises(DatasetError, match="ended early"):
        Dataset(rows()).examples(keep_faulty=True)


@pytest.mark.parametrize("ids", [("a", "a"), (1, "1"), (None, "0")])
def test_example_ids_are_unique(ids):
    rows = [{"question": "q", "example_id": each} for each in ids]
    with pytest.raises(DatasetError, match="rows 0 and 1 of the eval dataset share the example_id"):
        Dataset(rows).examples()
    with pytest.raises(DatasetError, match="share the example_id"):
        Dataset(ProceduralRows(lambda index: rows[index])).examples(0, 2)


@pytest.mark.parametrize("rows", ["text", b"bytes", {"question": "q"}])
def test_a_dataset_that_is_not_a_list_is_rejected_immediately(rows):
    with pytest.raises(DatasetError, match="not a list of rows"):
        SingleTurnEnv(rows)


@pytest.mark.parametrize("built", [None, 5, {"question": "q"}])
def test_a_builder_without_rows_is_reported(built):
    with pytest.raises(DatasetError, match="not rows"):
        Dataset(lambda: built).examples()


def test_negative_positions_are_rejected():
    for arguments in ((-1, 1), (0, -1)):
        with pytest.raises(DatasetError, match="must not be negative"):
            Dataset(questions(2)).examples(*arguments)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=5))
def test_any_json_row_is_kept_and_has_a_stable_digest(columns):
    rows = [{"question": "q", "extra": each} for each in columns]
    first, second = Dataset(rows).examples(), Dataset(iter(rows)).examples()
    assert [example.columns["extra"] for example in first] == columns
    assert task_set_digest(first) == task_set_digest(second)
