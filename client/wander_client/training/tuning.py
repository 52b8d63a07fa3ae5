"""Fine-tune a model on rows, and tell how it goes; continue a run from its folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wander.train.config import SFTSettings
from wander.train.settings_file import read_settings

from wander_client.errors import ClientError, Interrupted, NotFound
from wander_client.training.run import model_path, step_lines, with_path

if TYPE_CHECKING:
    from wander.train.sft import SFTResult

    from wander_client.context import Invocation

RECORD = "sft.json"
"""What a fine-tuning run was asked for, in its folder, so that `--resume` needs nothing else."""


def tune(
    context: Invocation,
    rows: Path,
    out: Path,
    config: Path | None,
    model: str | None,
    overrides: Sequence[str],
    sections: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> SFTResult:
    """Fine-tune a model on the rows of a file into `out/model`; raises `Interrupted` with what was kept."""
    from wander.train.data import read_rows

    chosen = with_path(sections, model_path(model) if model else None)
    settings = read_settings(SFTSettings, config, overrides, **chosen)
    next(read_rows(rows), None)  # says what is wrong with the file before anything is written
    _remember(rows, settings, out)
    return _tune(context, rows, settings, out, resume=False)


def go_on(context: Invocation, folder: Path) -> SFTResult:
    """Go on with a run; raises `NotFound` where there is none, `ClientError` when its rows are others now."""
    rows, settings = _read_begun(folder)
    return _tune(context, rows, settings, folder, resume=True)


def _tune(context: Invocation, rows: Path, settings: SFTSettings, out: Path, *, resume: bool) -> SFTResult:
    from wander.train.data import read_rows
    from wander.train.sft import train_sft

    output = context.output
    output.note(
        f"fine-tuning {settings.model.path} on {rows}: {settings.schedule.steps} steps\nsaving to {out}"
    )
    with step_lines(output, "fine-tuning", "loss") as show:
        result = train_sft(read_rows(rows), settings, out, progress=show, resume=resume)
    if result.interrupted:
        raise Interrupted(
            f"interrupted after step {result.steps}; the model so far is in `{result.model}`",
            hint=f"go on with `wander model sft --resume {shlex.quote(str(out))}`",
        )
    if result.too_long:
        output.warn(f"{result.too_long} rows exceed {settings.batch.max_length} tokens and were left out")
    return result


def _remember(rows: Path, settings: SFTSettings, out: Path) -> None:
    """Write what the run is asked for into its folder."""
    from wander.evals.store.jsonl import write_whole
    from wander.wire.postings import file_digest

    out.mkdir(parents=True, exist_ok=True)
    asked = {
        "rows": str(rows.resolve()),
        "rows_sha256": file_digest(rows),
        "settings": settings.model_dump(mode="json"),
    }
    write_whole(out / RECORD, json.dumps(asked, indent=1).encode() + b"\n")


def _read_begun(folder: Path) -> tuple[Path, SFTSettings]:
    """Return what a run was asked for; raises when it is none or its rows are others now."""
    from wander.wire.postings import file_digest

    try:
        asked = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFound(
            f"`{folder}` holds no fine-tuning run", hint="`wander model sft ROWS --out FOLDER` starts one"
        ) from None
    rows = Path(asked["rows"])
    if not rows.is_file() or file_digest(rows) != asked["rows_sha256"]:
        raise ClientError(
            f"the rows in `{rows}` are not those that the run was started with",
            hint="restore them, or start a new run",
            code="other_rows",
        )
    return rows, SFTSettings.model_validate(asked["settings"])
