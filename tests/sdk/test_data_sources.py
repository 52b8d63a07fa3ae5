"""Rows come out of every source as they went in, lazily, and shuffles leave the stored order alone."""

from __future__ import annotations

import csv
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander.data_sources import (
    CsvRows,
    JsonlRows,
    ParquetRows,
    file_rows,
    hugging_face_rows,
    without_nulls,
)
from wander.dataset import Dataset
from wander.errors import DatasetError, MissingExtra

MIXED = [
    {"question": "a", "answer": "1", "info": {"level": 1}},
    {"question": "b", "answer": "2", "info": {"hint": {"x": None, "y": [{"z": 1}, {}]}}},
    {"question": "c", "answer": "3"},
]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(st.text(min_size=1), JSON_VALUES, max_size=4), max_size=8)


def written_jsonl(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def parquet(tmp_path):
    """Return a function that writes rows to a Parquet file with two rows a group."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(rows):
        path = tmp_path / "rows.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
        return path

    return write


@given(ROWS)
def test_json_lines_are_read_unchanged(tmp_path_factory, rows):
    path = written_jsonl(tmp_path_factory.mktemp("rows") / "rows.jsonl", rows)
    read = JsonlRows(path)
    assert list(read) == rows
    assert [read[index] for index in reversed(range(len(rows)))] == rows[::-1]
    assert read[:2] == rows[:2]


def test_blank_lines_and_a_byte_order_mark_are_ignored(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n  \n{"a": 2}')
    assert list(JsonlRows(path)) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(("line", "reason"), [("{broken", "not JSON"), ("[1]", "a `list`, not an object")])
def test_a_bad_json_line_is_named_by_its_number(tmp_path, line, reason):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"a": 1}}\n\n{line}\n')
    with pytest.raises(DatasetError, match=f"line 3: {reason}"):
        list(JsonlRows(path))


def test_a_file_is_opened_when_its_first_row_is_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    dataset = Dataset(JsonlRows(path))
    with pytest.raises(DatasetError, match="cannot read") as caught:
        dataset.examples()
    assert "relative to the module" in caught.value.hint
    written_jsonl(path, MIXED)
    assert [example.answer for example in dataset.examples()] == ["1", "2", "3"]


def test_parquet_rows_keep_absent_keys_absent(parquet):
    read = ParquetRows(parquet(MIXED))
    assert len(read) == 3
    assert read[2] == {"question": "c", "answer": "3"}
    assert list(read) == [without_nulls(row) for row in MIXED]
    assert read[-1] == read[2]
    assert read[1:] == [read[1], read[2]]
    with pytest.raises(IndexError):
        read[3]


def test_a_file_that_is_not_parquet_is_reported(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "rows.parquet"
    path.write_text("no")
    with pytest.raises(DatasetError, match="is not Parquet"):
        len(ParquetRows(path))


def test_parquet_without_its_extra_names_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra) as caught:
        len(ParquetRows(tmp_path / "rows.parquet"))
    assert "wander-sdk[data]" in caught.value.hint


CELLS = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)))


@given(st.lists(st.tuples(CELLS, CELLS), max_size=8))
def test_csv_values_are_the_text_that_was_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("question", "answer"), *rows])
    assert list(CsvRows(path)) == [{"question": question, "answer": answer} for question, answer in rows]


def test_csv_strata_are_numbers_and_short_rows_lack_keys(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("question,answer,stratum\na,1.5,2\nb,2.5\n")
    assert list(CsvRows(path)) == [
        {"question": "a", "answer": "1.5", "stratum": 2},
        {"question": "b", "answer": "2.5"},
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("question,answer\na,1,2\n", "line 2: 3 values for 2 columns"),
        ("question,seed\na,x\n", "line 2: `seed` cannot be `x`"),
        ('question,seed\n"a', "not CSV"),
    ],
)
def test_a_bad_csv_line_is_named_by_its_number(tmp_path, text, reason):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(DatasetError, match=reason):
        list(CsvRows(path))


def test_the_suffix_chooses_the_reader(tmp_path, parquet):
    written_jsonl(tmp_path / "rows.jsonl", MIXED)
    (tmp_path / "rows.tsv").write_text("question\tanswer\na, b\t1\n")
    assert file_rows(tmp_path / "rows.jsonl")[0] == MIXED[0]
    assert file_rows(tmp_path / "rows.tsv")[0] == {"question": "a, b", "answer": "1"}
    assert file_rows(parquet(MIXED))[0] == MIXED[0]
    with pytest.raises(DatasetError, match="unknown file type"):
        file_rows("rows.xlsx")


def test_hugging_face_rows_drop_values_added_by_arrow():
    datasets = pytest.importorskip("datasets")
    rows = [row | {"info": row.get("info", {})} for row in MIXED]
    loaded = datasets.Dataset.from_list(rows)
    assert loaded[0]["info"] != rows[0]["info"], "Arrow no longer merges structs"
    assert list(hugging_face_rows(loaded)()) == [without_nulls(row) for row in rows]
    assert list(hugging_face_rows(loaded.to_iterable_dataset())()) == [without_nulls(row) for row in rows]
    assert Dataset(hugging_face_rows(loaded)).examples(1, 1)[0].answer == "2"


def test_hugging_face_columns_are_mapped_by_name():
    datasets = pytest.importorskip("datasets")
    loaded = datasets.Dataset.from_list([{"problem": "2 + 2?", "solution": "4", "level": 1}])
    for source in (loaded, loaded.to_iterable_dataset()):
        rows = hugging_face_rows(source, columns={"question": "problem", "answer": "solution"})
        assert list(rows()) == [{"question": "2 + 2?", "answer": "4", "level": 1}]
    taken = datasets.Dataset.from_list([{"problem": "2 + 2?", "question": "Which chapter?"}])
    rows = hugging_face_rows(taken, columns={"question": "problem", "answer": "problem"})
    assert list(rows()) == [{"question": "2 + 2?", "answer": "2 + 2?"}], (
        "our names win, and one column may have two"
    )
    with pytest.raises(DatasetError, match="no column `problems`") as caught:
        hugging_face_rows(loaded, columns={"question": "problems"})()
    assert caught.value.hint == "did you mean `problem`?"


def test_a_hub_dataset_without_the_extra_names_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    rows = hugging_face_rows("openai/gsm8k")
    with pytest.raises(MissingExtra) as caught:
        rows()
    assert "wander-sdk[huggingface]" in caught.value.hint
