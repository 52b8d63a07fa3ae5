"""`wander model sft`: fine-tune a model on selected rollouts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.terminal.command import Argument, Option
from wander_client.terminal.output import counted, shell_word

if TYPE_CHECKING:
    from wander.train.sft import SFTResult


Overrides = Annotated[
    list[str] | None, Option("--set", metavar="SECTION.FIELD=VALUE", help="change a setting; repeatable")
]


def sft(
    rows: Annotated[Path | None, Argument(help="file that `wander runs data` wrote")] = None,
    out: Annotated[Path | None, Option("-o", "--out", help="output folder")] = None,
    config: Annotated[Path | None, Option("-c", "--config", help="TOML file with settings")] = None,
    model: Annotated[str | None, Option("-m", "--model", help="a local model, as for `wander eval`")] = None,
    steps: Annotated[int | None, Option(min=1, help="number of steps")] = None,
    setting: Overrides = None,
    resume: Annotated[
        Path | None, Option(help="resume the run in this folder; needs no other option")
    ] = None,
) -> None:
    """Fine-tune a model on selected rollouts. Only the tokens that the model wrote are trained on.

    \b
    wander model sft rows.jsonl --model models/ttt --out models/ttt-sft --steps 300
    wander model sft rows.jsonl --config sft.toml --out models/ttt-sft --set schedule.eval_share=0.1
    wander model sft --resume models/ttt-sft

    The result is the folder OUT/model in Hugging Face format. Ctrl-C finishes the step and saves a
    checkpoint.
    """
    from wander_client.runs.lookup import require_same_folder
    from wander_client.training.tuning import read_tuning, resume_tuning, tune

    if resume is not None and (rows is None or read_tuning(resume).is_own):
        given = (rows, out, config, model, steps, setting)
        if any(value is not None for value in given):
            raise UsageError(
                "cannot change the settings of a resumed run",
                hint=f"run `wander model sft --resume {shlex.quote(str(resume))}`",
            )
        _report(resume_tuning(current(), resume))
        return
    if resume is not None:
        require_same_folder(resume, out)
    out = out or resume
    if rows is None or out is None:
        raise UsageError(
            "missing argument `ROWS`" if rows is None else "missing option `--out`",
            hint="run `wander model sft --help` for examples",
        )
    if not (model or config or resume or any(text.startswith("model.path=") for text in setting or ())):
        raise UsageError(
            "missing option `--model`",
            hint=f"for example: `wander model sft {shlex.quote(str(rows))} --model smollm2 "
            f"--out {shlex.quote(str(out))}`",
        )
    overrides = [*(setting or []), *([f"schedule.steps={steps}"] if steps else [])]
    _report(tune(current(), rows, out, config, model, overrides, resume=resume is not None))


def _report(result: SFTResult) -> None:
    from dataclasses import asdict

    from wander.train.distributed import is_secondary_process

    if is_secondary_process():
        return
    output = current().output
    data: dict[str, Any] = {**asdict(result), "model": str(result.model)}
    held_out = ""
    if result.held_out_first is not None and result.held_out_final is not None:
        rows = counted(result.held_out, "held-out row")
        held_out = f", on {rows} {result.held_out_first:.3f} before and {result.held_out_final:.3f} after"
    loss = f"loss {result.first_loss:.3f} in the first step, {result.final_loss:.3f} in the last tenth"
    output.answer(
        data,
        f"{result.model}: {counted(result.rows, 'row')}, {counted(result.steps, 'step')}, {loss}{held_out}, "
        f"{result.seconds:.0f} s",
    )
    output.next(f"wander eval ENVIRONMENT -m {shell_word(result.model)}")
