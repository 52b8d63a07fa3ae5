"""Exports runs as rows (JSON Lines, Parquet, folders for `datasets.load_dataset`) and in the formats of other
tools (`wander.evals.formats`, and plugins).

Each row is one rollout. `messages`, `prompt` and `completion` hold the conversation in the format of chat
templates and trainers. Rows are written while the rollouts are read, so a run of any size needs little
memory. Fields without a fixed shape (`answer`, `info`) are JSON text in Parquet. JSON Lines keep every value
as recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wander.errors import ConfigError, require_extra
from wander.evals.formats.atif import write_trajectories
from wander.evals.formats.eval_results import write_results
from wander.evals.formats.exported_run import BATCH, ExportedRun, json_text, new_folder, write_lines
from wander.evals.formats.inspect_log import write_logs
from wander.evals.store import jsonl
from wander.lazy import load_plugin
from wander.parsers import message_text
from wander.types import Message, Rollout
from wander.wire import RunManifest

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["jsonl", "parquet", "hf", "atif", "every-eval-ever", "eval-results", "inspect"]
Row = dict[str, Any]

GROUP = "wander.exporters"
"""Entry point group of plugins that write a format. The entry has the name of the format, and refers to a
function that takes the runs and the path, like `write_trajectories`."""
_SHARD = 50_000
"""Rows per file of a dataset folder."""


def format_of(path: Path) -> Format:
    """Return the export format for a file extension. A name without an extension is a dataset folder."""
    known: dict[str, Format] = {
        ".jsonl": "jsonl",
        ".parquet": "parquet",
        ".eval": "inspect",
        ".yaml": "eval-results",
        "": "hf",
    }
    if path.suffix not in known:
        raise ConfigError(
            f"cannot choose a format for `{path.name}`",
            hint="name it `.jsonl`, `.parquet`, `.eval` or `.yaml`, or pass `--format`",
        )
    return known[path.suffix]


def export_runs(
    runs: Sequence[ExportedRun], path: Path, kind: Format | None = None, *, tokens: bool = False
) -> Iterator[int]:
    """Write runs to a file or folder, and yield the number of rows written so far after each batch.

    The file appears only when it is complete. `tokens` adds `prompt_ids`, `completion_ids` and `logprobs`,
    each with one list per turn. Raises `MissingExtra` if pyarrow or the plugin that writes the format is not
    installed, and `ConfigError` if the folder already exists.
    """
    kind = kind or format_of(path)
    if kind == "atif":
        return write_trajectories(runs, path, tokens=tokens)
    if tokens and kind not in ("jsonl", "parquet", "hf"):
        raise ConfigError(f"the format `{kind}` cannot contain token ids")
    if kind == "every-eval-ever":
        write = load_plugin(GROUP, kind, f"the format `{kind}`", "wander-integrations")
        written: Iterator[int] = write(runs, path)
        return written
    if kind == "eval-results":
        return write_results(runs, path)
    if kind == "inspect":
        return write_logs(runs, path)
    rows = (row for run in runs for row in run_rows(run.manifest, run.rollouts(), tokens=tokens))
    if kind == "jsonl":
        return write_lines(rows, path)
    table = _tables_of(runs, tokens=tokens)
    if kind == "parquet":
        return _write_parquet(rows, path, table)
    return _write_folder(rows, path, table, runs)


def arrow_table(runs: Sequence[ExportedRun], *, tokens: bool = False) -> pa.Table:
    """Return runs as one table with a row per rollout. Raises `MissingExtra` if pyarrow is not installed."""
    table = _tables_of(runs, tokens=tokens)
    return table.build([row for run in runs for row in run_rows(run.manifest, run.rollouts(), tokens=tokens)])


def data_frame(runs: Sequence[ExportedRun], *, tokens: bool = False) -> Any:
    """Return runs as a `pandas.DataFrame` with a row per rollout and a column `metrics.NAME` per metric.

    Raises `MissingExtra` if pandas is not installed.
    """
    with require_extra("pandas", needed_for="a data frame of rollouts"):
        import pandas
    rows = []
    for row in (row for run in runs for row in run_rows(run.manifest, run.rollouts(), tokens=tokens)):
        metrics = row.pop("metrics")
        rows.append({**row, **{f"metrics.{name}": value for name, value in metrics.items()}})
    return pandas.DataFrame(rows)


def run_rows(manifest: RunManifest, rollouts: Iterable[Rollout], *, tokens: bool = False) -> Iterator[Row]:
    """Yield one row for each rollout of a run."""
    strata = dict(zip(manifest.example_ids, manifest.strata, strict=False))
    for rollout in rollouts:
        row: Row = {
            "run_id": manifest.run_id,
            "environment": manifest.environment.full_name,
            "version": manifest.environment.version,
            "model": manifest.model.name,
            "example_id": rollout.example_id,
            "index": rollout.index,
            "seed": rollout.seed,
            "stratum": strata.get(rollout.example_id),
            "messages": [*rollout.prompt, *rollout.completion],
            "prompt": rollout.prompt,
            "completion": rollout.completion,
            "answer": rollout.answer,
            "reward": rollout.reward,
            "metrics": rollout.metrics,
            "stop_reason": rollout.stop_reason,
            "truncated": rollout.truncated,
            "failure": rollout.failure.model_dump() if rollout.failure else None,
            "turns": len(rollout.turns),
            "prompt_tokens": rollout.usage.prompt_tokens,
            "completion_tokens": rollout.usage.completion_tokens,
            "cached_tokens": rollout.usage.cached_tokens,
            "reasoning_tokens": rollout.usage.reasoning_tokens,
            "seconds": rollout.seconds,
            "info": rollout.info,
        }
        if tokens:
            sampled = [turn.tokens for turn in rollout.turns if turn.tokens is not None]
            for name in ("prompt_ids", "completion_ids", "logprobs"):
                row[name] = [getattr(tokens_of_turn, name) for tokens_of_turn in sampled]
        yield row


def _tables_of(runs: Sequence[ExportedRun], *, tokens: bool) -> _Tables:
    return _Tables(sorted({name for run in runs for name in run.summary.metrics}), tokens)


def _write_parquet(rows: Iterator[Row], path: Path, table: _Tables) -> Iterator[int]:
    written = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with jsonl.replace_file(path) as out, table.writer(out) as writer:
        while batch := list(islice(rows, BATCH)):
            writer.write_table(table.build(batch))
            written += len(batch)
            yield written


def _write_folder(
    rows: Iterator[Row], path: Path, table: _Tables, runs: Sequence[ExportedRun]
) -> Iterator[int]:
    """Write Parquet files and their dataset card to a temporary folder, then move the folder to its path."""
    with new_folder(path) as temporary:
        (temporary / "data").mkdir()
        written = 0
        while (first := next(rows, None)) is not None:
            shard = temporary / "data" / f"rollouts-{written // _SHARD:05}.parquet"
            here = chain([first], islice(rows, _SHARD - 1))
            before = written
            for done in _write_parquet(here, shard, table):
                written = before + done
                yield written
        if not written:
            yield from _write_parquet(iter(()), temporary / "data" / "rollouts-00000.parquet", table)
        (temporary / "README.md").write_text(_card(runs, written), encoding="utf-8")


def _card(runs: Sequence[ExportedRun], rows: int) -> str:
    head = {
        "pretty_name": "Rollouts of a Wander run",
        "tags": ["wander", "rollouts"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
    }
    # JSON is also YAML, and it escapes any character that a model's name may contain.
    lines = ["---", *(f"{name}: {json.dumps(value)}" for name, value in head.items()), "---", ""]
    lines += ["# Rollouts", "", f"{rows:,} rollouts, one per row, exported by `wander runs export`.", ""]
    for run in runs:
        pin = run.manifest.environment
        title = f"{run.manifest.model.name} on {pin.full_name} {pin.version or ''}".strip()
        lines.append(f"- run `{run.manifest.run_id}`: `{' '.join(title.replace('`', ' ').split())}`")
    return "\n".join(lines) + "\n"


class _Tables:
    """Builds Arrow tables from rows, all with the same schema."""

    def __init__(self, metrics: Sequence[str], tokens: bool) -> None:
        with require_extra("data", needed_for="a table of rollouts"):
            import pyarrow
            import pyarrow.parquet
        self._arrow: Any = pyarrow
        self._metrics = list(metrics)
        self._schema = self._make_schema(tokens)

    def writer(self, out: Any) -> Any:
        return self._arrow.parquet.ParquetWriter(out, self._schema, compression="zstd")

    def build(self, rows: Sequence[Row]) -> pa.Table:
        return self._arrow.Table.from_pylist([self._flat(row) for row in rows], schema=self._schema)

    def _flat(self, row: Row) -> Row:
        if not 0 <= row["seed"] < 2**64:
            raise ConfigError(
                f"the seed {row['seed']} of example `{row['example_id']}` does not fit into 64 bits",
                hint="write JSON Lines: `-o rollouts.jsonl`",
            )
        flat = dict(row)
        for name in ("messages", "prompt", "completion"):
            flat[name] = [_plain_message(message) for message in row[name]]
        flat["answer"] = row["answer"] if isinstance(row["answer"], str) else json_text(row["answer"])
        flat["info"] = json_text(row["info"])
        if self._metrics:
            flat["metrics"] = {name: row["metrics"].get(name) for name in self._metrics}
        else:
            del flat["metrics"]
        return flat

    def _make_schema(self, tokens: bool) -> Any:
        arrow = self._arrow
        text, whole, real = arrow.string(), arrow.int64(), arrow.float64()
        function = arrow.struct([("name", text), ("arguments", text)])
        call = arrow.struct([("id", text), ("type", text), ("function", function)])
        fields = [("role", text), ("content", text), ("name", text), ("tool_call_id", text)]
        message = arrow.struct([*fields, ("reasoning_content", text), ("tool_calls", arrow.list_(call))])
        failure = [("boundary", text), ("type", text), ("message", text), ("retryable", arrow.bool_())]
        columns: list[tuple[str, Any]] = [
            *((name, text) for name in ("run_id", "environment", "version", "model", "example_id")),
            ("index", whole),
            ("seed", arrow.uint64()),
            ("stratum", whole),
            *((name, arrow.list_(message)) for name in ("messages", "prompt", "completion")),
            ("answer", text),
            ("reward", real),
            *([("metrics", arrow.struct([(name, real) for name in self._metrics]))] if self._metrics else []),
            ("stop_reason", text),
            ("truncated", arrow.bool_()),
            ("failure", arrow.struct(failure)),
            ("turns", whole),
            *((f"{name}_tokens", whole) for name in ("prompt", "completion", "cached", "reasoning")),
            ("seconds", real),
            ("info", text),
        ]
        if tokens:
            lists = arrow.list_(arrow.list_(whole))
            columns += [("prompt_ids", lists), ("completion_ids", lists)]
            columns.append(("logprobs", arrow.list_(arrow.list_(real))))
        return arrow.schema(columns)


def _plain_message(message: Message) -> Row:
    """Return a message with the fields that every row has. Content parts are reduced to their text."""
    calls = message.get("tool_calls")
    plain: Row = {name: _text(message.get(name)) for name in ("role", "name", "tool_call_id")}
    plain["content"] = message_text(message)
    plain["reasoning_content"] = _text(message.get("reasoning_content"))
    plain["tool_calls"] = [_plain_call(call) for call in calls] if isinstance(calls, list) else None
    return plain


def _plain_call(call: Any) -> Row:
    fields = call if isinstance(call, dict) else {}
    function = fields.get("function")
    function = function if isinstance(function, dict) else {}
    return {
        "id": _text(fields.get("id")),
        "type": _text(fields.get("type")),
        "function": {name: _text(function.get(name)) for name in ("name", "arguments")},
    }


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)
