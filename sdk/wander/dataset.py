"""Datasets, which turn rows into an ordered, indexable list of examples for each split, without shuffling.

A row is a plain dictionary. The columns with a meaning are `prompt` (messages, or text) or `question`,
`answer`, `info` (a dictionary, or its JSON), `example_id`, `seed` and `stratum`. All other columns are kept,
and reward functions may ask for them by name. Rows must be JSON values, because examples are sent between
processes and hashed. An environment therefore sees the same values in every process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Protocol

from wander.errors import DatasetError
from wander.seeding import derived_seed
from wander.types import Example, Message, Messages

Row = Mapping[str, Any]
Rows = Iterable[Row] | Callable[[], Iterable[Row]]
"""Rows that an author may pass: a list, any iterable (such as a Hugging Face dataset), or a function (or
generator function) that is called when the first row is needed."""

ROLES = frozenset({"system", "user", "assistant", "tool", "developer"})
_KEPT = 10_000
"""Maximum number of examples in memory. Other examples are created again when needed, so a million examples
use no more memory than their rows."""
_DIGITS = 20
NAMED_COLUMNS = frozenset({"prompt", "question", "answer", "info", "example_id", "seed", "stratum"})


@dataclass(frozen=True)
class ProceduralRows:
    """Rows computed from their index, so that each can be computed without the rows before it.

    `row_at(index)` must be a pure function of the index. A `length` of None makes the dataset endless.
    """

    row_at: Callable[[int], Row]
    length: int | None = None


class Dataset:
    """The ordered examples of a split, created from rows when they are first needed.

    `seed` is the environment's seed. A row without a `seed` column gets a seed derived from it, the split and
    the row's id. `stratum_column` names the column that holds the stratum, if it is not `stratum`.
    """

    def __init__(
        self,
        rows: Rows | ProceduralRows,
        *,
        split: Literal["train", "eval"] = "eval",
        seed: int = 0,
        system_prompt: str | None = None,
        few_shot: Messages | None = None,
        stratum_column: str = "stratum",
    ) -> None:
        if isinstance(rows, str | bytes | Mapping):
            raise DatasetError(
                f"the {split} dataset is a `{type(rows).__name__}`, not a list of rows",
                hint='pass a list of dictionaries, as in `[{"question": "2+2?", "answer": "4"}]`',
            )
        self.split = split
        self.seed = seed
        self.system_prompt = system_prompt
        self.few_shot = few_shot or []
        self.stratum_column = stratum_column
        self._rows = rows
        self._opened: _RowReader | None = None
        self._examples: dict[int, Example] = {}
        """Most recently created examples, at most `_KEPT`."""
        self._own_ids: dict[str, int] = {}
        """Indexes of the rows with an `example_id` column, among the rows read so far."""
        self._shown: tuple[Sequence[Messages], int, bool] = ((), 0, False)

    @property
    def length(self) -> int | None:
        """Number of examples, or None if the dataset is endless; reads an iterator to its end."""
        return self._reader().length()

    def examples(
        self, start: int = 0, count: int | None = None, *, keep_faulty: bool = False
    ) -> list[Example]:
        """Return up to `count` examples from index `start`; None means all remaining examples.

        Raises `DatasetError` for a row that cannot become an example, and for `count=None` on an endless
        dataset. With `keep_faulty`, such a row becomes an example with a `fault` and without a prompt.
        """
        if start < 0 or (count is not None and count < 0):
            raise DatasetError(f"`start` and `count` must not be negative, got {start} and {count}")
        if count is None:
            length = self.length
            if length is None:
                raise DatasetError(f"the {self.split} dataset is endless", hint="pass the number of examples")
            count = max(0, length - start)
        examples: list[Example] = []
        for index in range(start, start + count):
            example = self._example(index, keep_faulty=keep_faulty)
            if example is None:
                break
            examples.append(example)
        return examples

    def __getitem__(self, index: int) -> Example:
        example = self._example(index) if index >= 0 else None
        if example is None:
            raise IndexError(f"the {self.split} dataset has no example at index {index}")
        return example

    def __iter__(self) -> Iterator[Example]:
        index = 0
        while (example := self._example(index)) is not None:
            yield example
            index += 1

    def show(self, conversations: Sequence[Messages], most: int, *, own: bool = False) -> None:
        """Show the first `most` of these conversations before every question.

        If `own` is true, they were played with the first examples of this dataset. An example is then never
        shown its own conversation, which contains its answer.
        """
        self._shown = (conversations, most, own)
        self._examples.clear()

    def _reader(self) -> _RowReader:
        if self._opened is None:
            self._opened = _open(self._rows, self.split)
        return self._opened

    def _example(self, index: int, *, keep_faulty: bool = False) -> Example | None:
        """Return the example at an index, or None after the last example."""
        if index in self._examples:
            return self._examples[index]
        reader = self._reader()
        row: Any = None
        try:
            row = reader.row(index)
            if row is None:
                return None
            example = self._normalize(row, index)
        except DatasetError as error:
            # An iterator that raised an error has ended, so the following rows are also lost.
            if not keep_faulty or (row is None and isinstance(reader, _StreamedRows)):
                raise
            example = self._faulty(row, index, str(error))
        if (first := self._find_namesake(example.example_id, row, index)) is not None:
            raise DatasetError(
                f"rows {first} and {index} of the {self.split} dataset share the example_id "
                f"`{example.example_id}`",
                hint="make `example_id` unique, or leave the column out to number the rows",
            )
        if reader.finite and example.fault is None:
            if len(self._examples) >= _KEPT:
                del self._examples[next(iter(self._examples))]
            self._examples[index] = example
        return example

    def _find_namesake(self, example_id: str, row: Any, index: int) -> int | None:
        """Return the index of another row with the same id, if any. A row without an id has its index as
        id."""
        if _own_id(row) is None:
            return self._own_ids.get(example_id)
        first = self._own_ids.setdefault(example_id, index)
        if first != index:
            return first
        number = int(example_id) if example_id.isdecimal() and len(example_id) < _DIGITS else index
        if number >= index or str(number) != example_id:
            return None
        try:
            earlier = self._reader().row(number)
        except DatasetError:  # the row whose index is this id cannot be read
            return number
        return None if earlier is None or _own_id(earlier) is not None else number

    def _faulty(self, row: Any, index: int, fault: str) -> Example:
        """Return the example for a row that cannot be played."""
        own_id = _own_id(row)
        example_id = str(index) if own_id is None else own_id
        seed = derived_seed("example", self.seed, self.split, example_id)
        return Example(
            example_id=example_id, index=index, split=self.split, seed=seed, prompt=[], fault=fault
        )

    def _normalize(self, row: Any, index: int) -> Example:
        where = f"row {index} of the {self.split} dataset"
        values = _json_row(row, where)
        own_id = _own_id(values)
        example_id = str(index) if own_id is None else own_id
        derived = derived_seed("example", self.seed, self.split, example_id)
        seed = _whole_number(values.get("seed"), "seed", where)
        column = self.stratum_column
        return Example.model_construct(
            example_id=example_id,
            index=index,
            split=self.split,
            seed=derived if seed is None else seed,
            prompt=self._prompt(values, where, index),
            answer=values["answer"] if values.get("answer") is not None else "",
            info=_info(values.get("info"), where),
            stratum=_whole_number(values.get(column), column, where),
            columns={name: value for name, value in values.items() if name not in NAMED_COLUMNS},
        )

    def _prompt(self, values: dict[str, Any], where: str, index: int) -> Messages:
        """Build the opening messages: the row's own prompt, or system prompt, few-shot messages and
        question."""
        opening = values.get("prompt")
        if opening is None:
            question = values.get("question")
            if question is None:
                raise DatasetError(
                    f"{where} has neither `prompt` nor `question`",
                    hint=f"its columns are {', '.join(f'`{name}`' for name in values) or 'none'}",
                )
            conversations, most, own = self._shown
            others = [
                conversation
                for number, conversation in enumerate(conversations)
                if not (own and number == index)
            ][:most]
            messages = [*self.few_shot, *chain.from_iterable(others)]
            shots: Messages = json.loads(json.dumps(messages)) if messages else []
            opening = [*shots, {"role": "user", "content": str(question)}]
        elif isinstance(opening, str):
            opening = [{"role": "user", "content": opening}]
        messages = _check_prompt(opening, where)
        if self.system_prompt and not any(message["role"] == "system" for message in messages):
            return [{"role": "system", "content": self.system_prompt}, *messages]
        return messages


class _RowReader(Protocol):
    """Reads rows by index, independent of the type that the author passed."""

    finite: bool

    def row(self, index: int) -> Any | None: ...

    def length(self) -> int | None: ...


class _PlacedRows:
    """Rows with random access: a sequence, or a function of the index."""

    def __init__(
        self, row_at: Callable[[int], Any], length: Callable[[], int | None], *, finite: bool = True
    ) -> None:
        self._row_at = row_at
        self.length = length
        self.finite = finite

    def row(self, index: int) -> Any | None:
        length = self.length()
        return self._row_at(index) if length is None or index < length else None


class _StreamedRows:
    """Rows from an iterator, which is read only as far as needed."""

    finite = True

    def __init__(self, rows: Iterator[Row]) -> None:
        self._stream = rows
        self._read: list[Row] = []
        self._ended = False

    def row(self, index: int) -> Any | None:
        self._read_until(index + 1)
        return self._read[index] if index < len(self._read) else None

    def length(self) -> int | None:
        self._read_until(None)
        return len(self._read)

    def _read_until(self, count: int | None) -> None:
        while not self._ended and (count is None or len(self._read) < count):
            try:
                self._read.append(next(self._stream))
            except StopIteration:
                self._ended = True


def _open(rows: Rows | ProceduralRows, split: str) -> _RowReader:
    if callable(rows):
        rows = rows()
    if isinstance(rows, ProceduralRows):
        length = rows.length
        return _PlacedRows(rows.row_at, lambda: length, finite=length is not None)
    if hasattr(rows, "__len__") and hasattr(rows, "__getitem__") and not isinstance(rows, Mapping):
        return _PlacedRows(rows.__getitem__, rows.__len__)
    if isinstance(rows, Iterable) and not isinstance(rows, Mapping):
        return _StreamedRows(iter(rows))
    raise DatasetError(
        f"the function that builds the {split} dataset returned a `{type(rows).__name__}`, not rows",
        hint="return a list of dictionaries or an iterable of them",
    )


def _own_id(row: Any) -> str | None:
    """Return the `example_id` of a row as text, or None if it is missing or not JSON."""
    value = row.get("example_id") if isinstance(row, Mapping) else None
    try:
        return None if value is None else str(json.loads(_json_text(value)))
    except (TypeError, ValueError, RecursionError):
        return None


def _json_row(row: Any, where: str) -> dict[str, Any]:
    """Copy a row through JSON, so that it contains only JSON values and no objects of the author."""
    if not isinstance(row, Mapping):
        raise DatasetError(f"{where} is a `{type(row).__name__}`, not a dictionary")
    values: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(name, str):
            raise DatasetError(f"{where} has a column whose name is not text: `{name!r}`")
        try:
            text = _json_text({name: value})
            values[name] = (
                value if value is None or type(value) in (str, int, bool) else json.loads(text)[name]
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise DatasetError(
                f"{where}: column `{ascii(name)[1:-1]}` is not a JSON value ({error})",
                hint="keep text, numbers, booleans, lists and dictionaries in rows; "
                "build other objects in `setup_state`",
            ) from error
    return values


def _json_text(value: Any) -> str:
    """Return a value as JSON; raises `ValueError` for values that a file cannot hold, such as a lone
    surrogate."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()
    return text


def _whole_number(value: Any, column: str, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise DatasetError(
            f"{where}: `{column}` must be a whole number, got `{value!r}`",
            hint="number the values from 0, and keep their names in a column with another name",
        )
    return value


def _info(value: Any, where: str) -> dict[str, Any]:
    """Return `info` as a dictionary; text is parsed as JSON."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
            _json_text(value)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{where}: `info` is text but not JSON ({error})") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{where}: `info` must be a dictionary, got a `{type(value).__name__}`")
    return value


def _check_prompt(messages: Any, where: str) -> list[Message]:
    if not isinstance(messages, list) or not messages:
        raise DatasetError(f"{where}: `prompt` must be text or a non-empty list of messages")
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise DatasetError(
                f"{where}: message {position} of `prompt` has no known `role`",
                hint='a message is a dictionary such as `{"role": "user", "content": "..."}`',
            )
        content = message.get("content")
        if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
            raise DatasetError(
                f"{where}: message {position} of `prompt` has no `content`",
                hint="content is text or a list of parts; only a message with `tool_calls` may omit it",
            )
    return messages
