"""`wander sft`: fine-tune a model on filtered rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wander_client.command import command_app
from wander_client.errors import Interrupted
from wander_client.invocation import current

app = command_app()


@app.command()
def sft(
    rows: Annotated[Path, typer.Argument(help="rows of `wander data`")],
    out: Annotated[Path, typer.Option("-o", "--out", help="folder for the model and its metrics")],
    config: Annotated[Path | None, typer.Option("-c", "--config", help="settings, TOML")] = None,
    model: Annotated[str | None, typer.Option("-m", "--model", help="smollm2, or a folder")] = None,
    steps: Annotated[int | None, typer.Option(min=1)] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="section.field=value; may repeat")
    ] = None,
) -> None:
    """Fine-tune a model on filtered rollouts; only the model's own tokens are learnt.

    \b
    wander sft rows.jsonl --model models/ttt --out models/ttt-sft --steps 300
    wander sft rows.jsonl --config sft.toml --out models/ttt-sft --set schedule.learning_rate=1e-5

    The result is a Hugging Face folder, OUT/model.
    """
    from dataclasses import asdict

    from wander.train.config import SFTSettings, read_settings
    from wander.train.data import read_rows
    from wander.train.sft import train_sft

    from wander_client.training import StepLines, model_path

    output = current().output
    overrides = [*(setting or []), *([f"schedule.steps={steps}"] if steps else [])]
    given = {"model": {"path": model_path(model)}} if model else {}
    settings = read_settings(SFTSettings, config, overrides, **given)
    lines = StepLines("fine-tuning", ("loss",))
    with lines:
        result = train_sft(read_rows(rows), settings, out, progress=lines.show)
    if result.interrupted:
        raise Interrupted(f"interrupted after step {result.steps}; the model so far is in `{result.model}`")
    if result.too_long:
        output.warn(f"{result.too_long} rows exceed {settings.batch.max_length} tokens and were left out")
    data: dict[str, Any] = {**asdict(result), "model": str(result.model)}
    output.answer(
        data,
        f"{result.model}: {result.rows} rows, {result.steps} steps, loss {result.first_loss:.3f} -> "
        f"{result.final_loss:.3f}, {result.seconds:.0f} s",
    )
    output.next(f"wander eval ENVIRONMENT -m {result.model}")
