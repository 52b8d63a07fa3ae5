"""`wander model sft`: fine-tune a model on filtered rollouts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wander_client.context import current
from wander_client.errors import ClientError, Interrupted, NotFound, UsageError

if TYPE_CHECKING:
    from wander.train.config import SFTSettings


Overrides = Annotated[list[str] | None, typer.Option("--set", help="section.field=value; repeatable")]

RECORD = "sft.json"
"""What a fine-tuning run was asked for, in its folder, so that `--resume` needs nothing else."""


def sft(
    rows: Annotated[Path | None, typer.Argument(help="rows of `wander runs data`")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="folder for the model")] = None,
    config: Annotated[Path | None, typer.Option("-c", "--config", help="settings, TOML")] = None,
    model: Annotated[str | None, typer.Option("-m", "--model", help="smollm2, or a folder")] = None,
    steps: Annotated[int | None, typer.Option(min=1)] = None,
    setting: Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(help="resume the run in this folder; no other option is needed")
    ] = None,
) -> None:
    """Fine-tune a model on filtered rollouts; only the model's own tokens are learnt.

    \b
    wander model sft rows.jsonl --model models/ttt --out models/ttt-sft --steps 300
    wander model sft rows.jsonl --config sft.toml --out models/ttt-sft --set schedule.eval_share=0.1
    wander model sft --resume models/ttt-sft

    The result is a Hugging Face folder, OUT/model. Ctrl-C finishes the step and keeps a checkpoint.
    """
    from wander.train.config import SFTSettings, read_settings
    from wander.train.data import read_rows

    from wander_client.training.run import model_path, require_alone

    require_alone("fine-tuning")
    if resume is not None:
        given = (rows, out, config, model, steps, setting)
        if any(one is not None for one in given):
            raise UsageError("`--resume` goes on with what the run was begun with", hint="give it alone")
        rows, settings = _read_begun(resume)
        _tune(rows, settings, resume, resume=True)
        return
    if rows is None or out is None:
        raise UsageError(
            "the rows are missing" if rows is None else "`--out FOLDER` is missing",
            hint="run `wander model sft --help` for examples",
        )
    overrides = [*(setting or []), *([f"schedule.steps={steps}"] if steps else [])]
    chosen = {"model": {"path": model_path(model)}} if model else {}
    settings = read_settings(SFTSettings, config, overrides, **chosen)
    next(read_rows(rows), None)  # says what is wrong with the file before anything is written
    _remember(rows, settings, out)
    _tune(rows, settings, out, resume=False)


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
    from wander.train.config import SFTSettings
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


def _tune(rows: Path, settings: SFTSettings, out: Path, *, resume: bool) -> None:
    """Fine-tune and report."""
    from dataclasses import asdict

    from wander.train.data import read_rows
    from wander.train.sft import train_sft

    from wander_client.training.run import step_lines

    output = current().output
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
    data: dict[str, Any] = {**asdict(result), "model": str(result.model)}
    held_out = ""
    if result.held_out_first is not None and result.held_out_final is not None:
        held_out = (
            f", on {result.held_out} held out {result.held_out_first:.3f} -> {result.held_out_final:.3f}"
        )
    output.answer(
        data,
        f"{result.model}: {result.rows} rows, {result.steps} steps, loss {result.first_loss:.3f} -> "
        f"{result.final_loss:.3f}{held_out}, {result.seconds:.0f} s",
    )
    output.next(f"wander eval ENVIRONMENT -m {result.model}")
