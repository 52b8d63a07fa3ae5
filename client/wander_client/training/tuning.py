"""Fine-tune a model on rows, show the progress, and resume a run from its folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wander.evals.store.folder import require_plain_folder
from wander.train.config import SFTSettings
from wander.train.distributed import is_secondary_process
from wander.train.settings.toml_file import read_settings
from wander.types import Record
from wander.wire.postings import file_digest

from wander_client.errors import ClientError, Interrupted, NotFound
from wander_client.runs.own_records import KeptCommand, foreign_record, read_command, write_command
from wander_client.terminal.output import counted
from wander_client.training.run import flatten, model_path, step_lines, with_path

if TYPE_CHECKING:
    from wander.train.sft import SFTResult

    from wander_client.context import Invocation

RECORD = "sft.json"
"""File with the settings of a fine-tuning run, so that `--resume` is enough to continue."""


class FineTuning(Record):
    """The settings of a fine-tuning run."""

    rows: str
    """Absolute path of the file with the rows."""
    rows_sha256: str
    settings: SFTSettings


def tune(
    context: Invocation,
    rows: Path,
    out: Path,
    config: Path | None,
    model: str | None,
    overrides: Sequence[str],
    sections: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    *,
    resume: bool = False,
) -> SFTResult:
    """Fine-tune a model on the rows of a file into `out/model`. Raises `Interrupted` with the saved work.
    `resume` continues a run that somebody else started, with these settings.
    """
    from wander.train.data import read_rows

    chosen = with_path(sections, model_path(model) if model else None)
    settings = read_settings(SFTSettings, config, overrides, **chosen)
    next(read_rows(rows), None)  # raises errors in the file before anything is written
    if not is_secondary_process():
        out.mkdir(parents=True, exist_ok=True)
        require_plain_folder(out)
        asked = FineTuning(rows=str(rows.resolve()), rows_sha256=file_digest(rows), settings=settings)
        write_command(out / RECORD, asked)
    return _tune(context, rows, settings, out, resume=resume)


def resume_tuning(context: Invocation, folder: Path) -> SFTResult:
    """Resume a run that this user started on this machine.
    Raises `NotFound` for a folder without a run, and `ClientError` if somebody else started it or its rows
    have changed.
    """
    kept = read_tuning(folder)
    asked, rows = kept.command, Path(kept.command.rows)
    if not kept.is_own:
        asks = [f"rows={asked.rows}", *flatten(asked.settings.model_dump(mode="json", exclude_defaults=True))]
        words = f"wander model sft ROWS --config CONFIG.toml --resume {shlex.quote(str(folder))}"
        raise foreign_record(folder, asks, f"pass the rows and settings that you want to use: `{words}`")
    require_plain_folder(folder)
    if not rows.is_file() or file_digest(rows) != asked.rows_sha256:
        raise ClientError(
            f"the rows in `{rows}` have changed since the run started",
            hint="restore them, or start a new run",
            code="other_rows",
        )
    return _tune(context, rows, asked.settings, folder, resume=True)


def read_tuning(folder: Path) -> KeptCommand[FineTuning]:
    """Read the settings of a fine-tuning run. Raises `NotFound` for a folder without a run."""
    try:
        return read_command(folder / RECORD, FineTuning)
    except FileNotFoundError:
        raise NotFound(
            f"`{folder}` is not a fine-tuning run", hint="start one with `wander model sft ROWS --out FOLDER`"
        ) from None


def _tune(context: Invocation, rows: Path, settings: SFTSettings, out: Path, *, resume: bool) -> SFTResult:
    from wander.train.data import read_rows
    from wander.train.sft import train_sft

    output = context.output
    output.note(
        f"fine-tuning {settings.model.path} on {rows}: {counted(settings.schedule.steps, 'step')}\n"
        f"saving to {out}"
    )
    with step_lines(output, "fine-tuning", "loss") as show:
        result = train_sft(read_rows(rows), settings, out, progress=show, resume=resume)
    if result.interrupted and not is_secondary_process():
        raise Interrupted(
            f"interrupted after step {result.steps}; the model so far is in `{result.model}`",
            hint=f"resume with `wander model sft --resume {shlex.quote(str(out))}`",
        )
    if result.too_long:
        output.warn(f"{result.too_long} rows exceed {settings.batch.max_length} tokens and were left out")
    return result
