"""Rows from files and from the Hugging Face hub, exactly as they were written.

Every reader returns rows that `Environment(dataset=...)` accepts. Files are opened when the first row is
needed. Keys that a row does not have stay absent. They are not filled with None to make all rows look the
same, as Arrow tables do with nested values.
"""

from __future__ import annotations

import bisect
import csv
import io
import itertools
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, overload

from wander.errors import DatasetError, did_you_mean, require_extra

__all__ = ["file_rows", "hugging_face_rows"]

Plain = dict[str, Any]


class _Rows(Sequence[Plain]):
    """Rows by index; negative indexes count from the end, and a slice is a list."""

    @abstractmethod
    def _at(self, index: int) -> Plain:
        """Return the row at an index from 0 to the length minus 1."""

    @overload
    def __getitem__(self, index: int) -> Plain: ...
    @overload
    def __getitem__(self, index: slice) -> list[Plain]: ...
    def __getitem__(self, index: int | slice) -> Plain | list[Plain]:
        positions = range(len(self))[index]
        if isinstance(positions, range):
            return [self._at(position) for position in positions]
        return self._at(positions)


class JsonlRows(_Rows):
    """The rows of a JSON Lines file with an object per line; blank lines are skipped.

    The file is scanned once for the starts of its lines and then read row by row, so a large file needs only
    8 bytes of memory per row. The file must not change while it is in use. A line that has become invalid
    JSON raises `DatasetError`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._offsets: list[tuple[int, int]] | None = None
        """Line number (from 1) and byte offset of every row."""

    def __len__(self) -> int:
        return len(self._index())

    def _at(self, index: int) -> Plain:
        place = self._index()[index]
        with _open(self.path) as file:
            return self._read(file, *place)

    def __iter__(self) -> Iterator[Plain]:
        with _open(self.path) as file:
            for place in self._index():
                yield self._read(file, *place)

    def _index(self) -> list[tuple[int, int]]:
        if self._offsets is None:
            offsets, offset = [], 0
            with _open(self.path) as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        offsets.append((number, offset))
                    offset += len(line)
            self._offsets = offsets
        return self._offsets

    def _read(self, file: BinaryIO, number: int, offset: int) -> Plain:
        file.seek(offset)
        try:
            row = json.loads(file.readline().decode("utf-8-sig" if offset == 0 else "utf-8"))
        except ValueError as error:
            raise DatasetError(f"`{self.path}`, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DatasetError(
                f"`{self.path}`, line {number}: a `{type(row).__name__}`, not an object",
                hint='every line must be a row, such as `{"question": "2+2?", "answer": "4"}`',
            )
        return row


class ParquetRows(_Rows):
    """The rows of a Parquet file, with a single row group in memory at a time. Needs the extra `data`.

    A Parquet column has a value in every row, so absent keys are stored as nulls. Nulls are left out again
    when rows are read, at every depth.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._starts: list[int] = []
        """Index of the first row of each row group, followed by the number of rows."""
        self._held: tuple[int, list[Plain]] = (-1, [])

    def __len__(self) -> int:
        if not self._starts:
            with _parquet_file(self.path) as file:
                groups = range(file.metadata.num_row_groups)
                sizes = [file.metadata.row_group(number).num_rows for number in groups]
            self._starts = [0, *itertools.accumulate(sizes)]
        return self._starts[-1]

    def _at(self, index: int) -> Plain:
        group = bisect.bisect_right(self._starts, index) - 1
        if self._held[0] != group:
            self._held = (group, self._group(group))
        return self._held[1][index - self._starts[group]]

    def _group(self, number: int) -> list[Plain]:
        with _parquet_file(self.path) as file:
            return [
                without_nulls(row) for row in file.read_row_group(number).to_pylist(maps_as_pydicts="strict")
            ]


class CsvRows(_Rows):
    """The rows of a CSV file with a header line. Values are texts.

    Only `seed` and `stratum` are converted to whole numbers. A row that is shorter than the header lacks the
    remaining keys.
    """

    def __init__(self, path: str | Path, *, delimiter: str = ",") -> None:
        self.path = Path(path)
        self.delimiter = delimiter
        self._rows: list[Plain] | None = None

    def __len__(self) -> int:
        return len(self._read())

    def _at(self, index: int) -> Plain:
        return self._read()[index]

    def _read(self) -> list[Plain]:
        if self._rows is None:
            csv.field_size_limit(2**31 - 1)
            with _open(self.path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
                lines = csv.reader(file, delimiter=self.delimiter, strict=True)
                try:
                    header = next(lines, [])
                    self._rows = [self._row(header, cells, lines.line_num) for cells in lines if cells]
                except (csv.Error, UnicodeDecodeError) as error:
                    raise DatasetError(f"`{self.path}`, line {lines.line_num}: not CSV ({error})") from error
        return self._rows

    def _row(self, header: list[str], cells: list[str], line: int) -> Plain:
        if len(cells) > len(header):
            raise DatasetError(
                f"`{self.path}`, line {line}: {len(cells)} values for {len(header)} columns",
                hint="put values that contain the delimiter or a line break in double quotes",
            )
        row: Plain = dict(zip(header, cells, strict=False))
        for column in {"seed", "stratum"} & row.keys():
            try:
                row[column] = int(row[column])
            except ValueError as error:
                raise DatasetError(
                    f"`{self.path}`, line {line}: `{column}` cannot be `{row[column]}` ({error})"
                ) from error
        return row


def file_rows(path: str | Path) -> Sequence[Plain]:
    """Return the rows of a `.jsonl`, `.csv`, `.tsv` or `.parquet` file; raises `DatasetError` for other
    files."""
    suffix = Path(path).suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return JsonlRows(path)
    if suffix in (".csv", ".tsv"):
        return CsvRows(path, delimiter="," if suffix == ".csv" else "\t")
    if suffix == ".parquet":
        return ParquetRows(path)
    raise DatasetError(
        f"`{path}` has an unknown file type",
        hint="use `.jsonl`, `.csv`, `.tsv` or `.parquet`, or choose a reader: `JsonlRows(path)`",
    )


def hugging_face_rows(
    source: Any,
    *,
    split: str = "train",
    subset: str | None = None,
    revision: str | None = None,
    keep_nulls: bool = False,
    columns: Mapping[str, str] | None = None,
) -> Callable[[], Iterable[Plain]]:
    """Return the rows of a Hugging Face dataset, which is loaded when the first row is needed.

    `source` is a `datasets.Dataset` (streaming or not), or the id of a dataset on the hub, such as
    `openai/gsm8k`. Give a `revision` (a commit) for a hub dataset; otherwise its rows may change under a
    published environment. `columns` maps our column names to the dataset's, as in `{"question": "problem"}`;
    other columns keep their names. Nulls are left out as for Parquet. A hub id needs the extra `huggingface`,
    and the network or a filled cache.
    """

    def rows() -> Iterable[Plain]:
        loaded = source
        if isinstance(source, str):
            with require_extra("huggingface", needed_for=f"loading the dataset `{source}`"):
                import datasets
            try:
                loaded = datasets.load_dataset(source, subset, split=split, revision=revision)
            except Exception as error:
                raise DatasetError(
                    f"cannot load the dataset `{source}`: {error}",
                    hint="check its name, subset and split, and the connection; or ship the rows in a "
                    "`.jsonl` file",
                ) from error
        chosen = columns or {}
        _require_columns(chosen.values(), getattr(loaded, "column_names", None))
        renamed = set(chosen.values())

        def change(row: Any) -> Plain:
            named = {column: value for column, value in row.items() if column not in renamed}
            # replaces a column that already has this name
            named |= {name: row.get(column) for name, column in chosen.items()}
            return named if keep_nulls else without_nulls(named)

        return _MappedRows(loaded, change) if hasattr(loaded, "__len__") else map(change, loaded)

    return rows


def _require_columns(asked: Iterable[str], known: Sequence[str] | None) -> None:
    """Raise `DatasetError` for a column that the dataset does not have."""
    for column in asked:
        if known is not None and column not in known:
            hint = did_you_mean(column, known) or f"it has {', '.join(known)}"
            raise DatasetError(f"the dataset has no column `{column}`", hint=hint)


def without_nulls(value: Any) -> Any:
    """Return a copy of a JSON value without keys whose value is None, at every depth."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


class _MappedRows(_Rows):
    """Rows of an indexable object; each is converted by a function when it is read."""

    def __init__(self, rows: Any, change: Callable[[Any], Plain]) -> None:
        self._rows = rows
        self._change = change

    def __len__(self) -> int:
        return len(self._rows)

    def _at(self, index: int) -> Plain:
        return self._change(self._rows[index])


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DatasetError(
            f"cannot read `{path}`: {error.strerror or error}",
            hint="name data files relative to the module: `Path(__file__).parent / 'data.jsonl'`",
        ) from error


def _parquet_file(path: Path) -> Any:
    with require_extra("data", needed_for=f"reading `{path}`"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    with _open(path):
        pass  # reports a wrong path more clearly than Arrow does
    try:
        return ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise DatasetError(f"`{path}` is not Parquet ({error})") from error
