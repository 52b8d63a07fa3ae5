"""Answers, rows and example datasets of the classic API.

Rows may be a Hugging Face dataset, a list of dictionaries, or a function that returns either. They get the
columns `prompt`, `answer`, `info` and `example_id`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wander.errors import require_extra
from wander.seeding import derived_rng

if TYPE_CHECKING:
    from datasets import Dataset

BOXED_SYSTEM_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
THINK_BOXED_SYSTEM_PROMPT = "Think step-by-step inside <think>...</think> tags. \
    Then, give your final answer inside \\boxed{}."

RowMaker = Callable[[dict[str, Any]], dict[str, Any]]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    r"""Return the content of the last `\boxed{...}`.

    Without a box, return the text, or nothing with `strict`.
    """
    start = text.rfind("\\boxed{")
    if start < 0:
        return "" if strict else text
    depth = 1
    start += len("\\boxed{")
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : start + brace.start()]
    return "" if strict else text


def extract_hash_answer(text: str) -> str:
    """Return the stripped text between the first `####` and the next one or the end.

    Without `####`, all text.
    """
    return text.split("####")[1].strip() if "####" in text else text


def strip_non_numeric(text: str) -> str:
    """Return the digits and decimal points of a text."""
    return "".join(letter for letter in text if letter.isdigit() or letter == ".")


def as_dataset(rows: Any) -> Dataset:
    """Convert rows to a Hugging Face dataset. Raises `TypeError` for other values, and `MissingExtra`."""
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
    raise TypeError(f"expected a dataset, got a `{type(rows).__name__}`")


def dataset_of(rows: Sequence[Mapping[str, Any]]) -> Dataset:
    """Convert dictionaries to a dataset with all columns that any of them has."""
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
    """Return the dataset with a `prompt` for every row and integers as `example_id`.

    A row with its own messages keeps them, after the system prompt. Any other row gets a prompt that
    consists of the system prompt, the few-shot examples and its question.
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
    """Return the messages for a question."""
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [*system, *map(dict, few_shot or []), {"role": "user", "content": question}]


def with_example_ids(dataset: Dataset) -> Dataset:
    """Return the dataset with integers as `example_id`. Other ids are kept as `src_id`."""
    if "example_id" in dataset.column_names:
        if str(dataset.features["example_id"].dtype).startswith(("int", "uint")):
            return dataset
        dataset = dataset.rename_column("example_id", "src_id")
    return dataset.add_column("example_id", list(range(len(dataset))))


def info_of(value: Any) -> dict[str, Any]:
    """Return the `info` of a row, which may be a dictionary or JSON text."""
    if isinstance(value, str):
        return dict(json.loads(value)) if value.strip() else {}
    return dict(value) if value else {}


def load_example_dataset(
    name: str = "gsm8k", split: str | None = None, n: int | None = None, seed: int = 0
) -> Any:
    """Download a named example dataset, and return it with `question` and `answer`.

    Raises `ValueError` for an unknown name, and `RuntimeError` if the data cannot be downloaded, as on a
    machine without a network.
    """
    make = get_preprocess_fn(name)
    from datasets import concatenate_datasets, load_dataset

    repository, configurations, usual, _ = EXAMPLE_DATASETS[name]
    try:
        parts = [load_dataset(repository, name, split=split or usual) for name in configurations]
    except Exception as error:
        raise RuntimeError(
            f"the dataset `{repository}` cannot be loaded: {type(error).__name__}: {str(error)[:300]}. "
            "It is downloaded from the Hugging Face hub when the environment is loaded. Let this machine "
            "access the hub, or put a copy of the dataset into its cache"
        ) from error
    rows = parts[0] if len(parts) == 1 else concatenate_datasets(parts)
    rows = rows.map(make, remove_columns=rows.column_names)
    if n is not None and n > 0:
        rows = rows.shuffle(seed=seed).select(range(min(n, len(rows))))
    return rows


def get_preprocess_fn(name: str) -> RowMaker:
    """Return a function that converts a row of a named dataset to `question` and `answer`."""
    if name not in EXAMPLE_DATASETS:
        raise ValueError(f"there is no example dataset `{name}`; available are {', '.join(EXAMPLE_DATASETS)}")
    return EXAMPLE_DATASETS[name][3]


def _question(question: str, answer: str, read: Callable[[str], str] = str) -> RowMaker:
    return lambda row: {"question": row[question], "answer": read(str(row[answer]))}


def _letter_choices(question: str, choices: list[str]) -> str:
    lines = [f"{letter}: {text}" for letter, text in zip(LETTERS, choices, strict=False)]
    return "\n".join([f"Question: {question}", "", *lines])


def _mmlu(row: dict[str, Any]) -> dict[str, Any]:
    return {"question": _letter_choices(row["question"], row["choices"]), "answer": LETTERS[row["answer"]]}


def _mmlu_pro(row: dict[str, Any]) -> dict[str, Any]:
    return {"question": _letter_choices(row["question"], row["options"]), "answer": row["answer"]}


def _gpqa(row: dict[str, Any]) -> dict[str, Any]:
    """Return the four answers in an order that depends only on the question."""
    right = row["Correct Answer"]
    choices = [right, *(row[f"Incorrect Answer {number}"] for number in (1, 2, 3))]
    derived_rng("gpqa", row["Question"]).shuffle(choices)
    return {"question": _letter_choices(row["Question"], choices), "answer": LETTERS[choices.index(right)]}


def _openbookqa(row: dict[str, Any]) -> dict[str, Any]:
    choices = zip(row["choices"]["label"], row["choices"]["text"], strict=True)
    lines = [f"{label}. {text}" for label, text in choices]
    question = "\n".join([f"Question: {row['question_stem']}", "", "Choices:", *lines])
    return {"question": question, "answer": row["answerKey"]}


EXAMPLE_DATASETS: dict[str, tuple[str, tuple[str | None, ...], str, RowMaker]] = {
    "aime2024": ("HuggingFaceH4/aime_2024", (None,), "train", _question("problem", "answer")),
    "aime2025": (
        "opencompass/AIME2025",
        ("AIME2025-I", "AIME2025-II"),
        "test",
        _question("question", "answer", strip_non_numeric),
    ),
    "amc2023": ("knoveleng/AMC-23", (None,), "train", _question("problem", "answer")),
    "gpqa_diamond": ("Idavidrein/gpqa", ("gpqa_diamond",), "train", _gpqa),
    "gpqa_main": ("Idavidrein/gpqa", ("gpqa_main",), "train", _gpqa),
    "gsm8k": ("openai/gsm8k", ("main",), "test", _question("question", "answer", extract_hash_answer)),
    "math": (
        "chiayewken/competition_math",
        (None,),
        "train",
        _question("problem", "solution", extract_boxed_answer),
    ),
    "math500": ("HuggingFaceH4/MATH-500", (None,), "test", _question("problem", "answer")),
    "mmlu": ("cais/mmlu", ("all",), "validation", _mmlu),
    "mmlu_pro": ("TIGER-Lab/MMLU-Pro", (None,), "validation", _mmlu_pro),
    "openbookqa": ("allenai/openbookqa", ("main",), "train", _openbookqa),
    "openrs": ("knoveleng/open-rs", (None,), "train", _question("problem", "answer")),
}
"""Named datasets: repository, configurations, split, and the function that converts a row."""
