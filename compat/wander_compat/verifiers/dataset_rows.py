"""Rows of the classic API: Hugging Face datasets with `prompt`, `answer`, `info`, `example_id`.

Rows may come as a dataset, a list of dictionaries or a function that makes either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wander.errors import require_extra

if TYPE_CHECKING:
    from datasets import Dataset


def as_dataset(rows: Any) -> Dataset:
    """Return rows as a Hugging Face dataset; raises `TypeError` for what is none, `MissingExtra`."""
    with require_extra("huggingface", needed_for="a dataset of the classic API"):
        from datasets import Dataset
    if isinstance(rows, Dataset):
        return rows
    if hasattr(rows, "to_list") and callable(rows.to_list):
        rows = rows.to_list()
    if isinstance(rows, Mapping):
        return Dataset.from_dict(dict(rows))
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        return dataset_of(rows)
    raise TypeError(f"a dataset is expected, got a `{type(rows).__name__}`")


def dataset_of(rows: Sequence[Mapping[str, Any]]) -> Dataset:
    """Return dictionaries as a dataset with every column that any of them has."""
    from datasets import Dataset

    names = dict.fromkeys(name for row in rows for name in row)
    return Dataset.from_dict({name: [row.get(name) for row in rows] for name in names})


def format_dataset(
    dataset: Dataset,
    system_prompt: str | None = None,
    few_shot: Sequence[Mapping[str, Any]] | None = None,
    question_key: str = "question",
    answer_key: str = "answer",
    map_kwargs: Mapping[str, Any] | None = None,
) -> Dataset:
    """Return the dataset with a `prompt` for every row and whole numbers as `example_id`.

    A row that brings its own messages keeps them, after the system prompt; any other gets a prompt of the
    system prompt, the few shots and its question.
    """
    dataset = with_example_ids(dataset)
    options = dict(map_kwargs or {})
    if "prompt" not in dataset.column_names:
        if question_key not in dataset.column_names:
            raise ValueError(
                f"the dataset has neither `prompt` nor `{question_key}`: {', '.join(dataset.column_names)}"
            )

        def make(row: dict[str, Any]) -> dict[str, Any]:
            made: dict[str, Any] = {"prompt": prompt_of(row[question_key], system_prompt, few_shot)}
            if answer_key != "answer" and answer_key in row:
                made["answer"] = row[answer_key]
            return made

        return dataset.map(make, **options)
    if system_prompt is None:
        return dataset

    def add_system(row: dict[str, Any]) -> dict[str, Any]:
        prompt = row["prompt"]
        if not isinstance(prompt, list) or (prompt and prompt[0].get("role") == "system"):
            return {"prompt": prompt}
        return {"prompt": [{"role": "system", "content": system_prompt}, *prompt]}

    return dataset.map(add_system, **options)


def prompt_of(
    question: str, system_prompt: str | None, few_shot: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return the messages of one question."""
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [*system, *map(dict, few_shot or []), {"role": "user", "content": question}]


def with_example_ids(dataset: Dataset) -> Dataset:
    """Return the dataset with whole numbers as `example_id`; other ids are kept as `src_id`."""
    if "example_id" in dataset.column_names:
        if str(dataset.features["example_id"].dtype).startswith(("int", "uint")):
            return dataset
        dataset = dataset.rename_column("example_id", "src_id")
    return dataset.add_column("example_id", list(range(len(dataset))))


def info_of(value: Any) -> dict[str, Any]:
    """Return the `info` of a row, given as a dictionary or as its JSON text."""
    if isinstance(value, str):
        return dict(json.loads(value)) if value.strip() else {}
    return dict(value) if value else {}
