"""`wander runs data`: turn rollouts into rows for fine-tuning."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import FAILED
from wander_client.terminal.command import Argument, Option, refuse_options
from wander_client.terminal.output import shell_word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wander.train.data import Sourced

    from wander_client.runs.found import FoundRun


def data(
    runs: Annotated[list[str], Argument(help="folders or run IDs")],
    out: Annotated[Path, Option("-o", "--out", help="output file")],
    min_reward: Annotated[float | None, Option(help="drop rollouts with a reward below this")] = None,
    where: Annotated[
        list[str] | None,
        Option(help="keep rollouts that meet a condition, such as `lost==0`; repeatable"),
    ] = None,
    stop_reason: Annotated[
        list[str] | None, Option(help="keep rollouts with this stop reason; repeatable")
    ] = None,
    whole: Annotated[
        bool, Option("--whole", help="drop rollouts that were cut off by a token limit")
    ] = False,
    near: Annotated[
        bool, Option("--near", help="also drop near duplicates (rollouts that use the same words)")
    ] = False,
    keep_repeats: Annotated[
        bool, Option("--keep-repeats", help="keep identical conversations, which are dropped by default")
    ] = False,
    per_example: Annotated[
        int | None, Option(min=1, help="keep only the best N rollouts of each example")
    ] = None,
    per_stratum: Annotated[
        int | None, Option(min=1, help="keep only the best N rollouts of each stratum")
    ] = None,
    show_dropped: Annotated[int, Option(min=0, help="print N dropped rollouts for each reason")] = 0,
) -> int | None:
    """Turn the rollouts of runs into training rows, and report how many were dropped and why.

    \b
    wander runs data runs/RUN --min-reward 0.5 --out rows.jsonl
    wander runs data runs/RUN --where lost==0 --where 'tokens<200' --whole --out rows.jsonl
    wander runs data runs/ONE runs/TWO --near --per-example 1 --show-dropped 3 --out rows.jsonl

    Conditions of `--where` compare `reward`, a reward function, `turns`, `tokens` (of the completions),
    `prompt_tokens`, `characters` or `truncated`. Rows include tool calls and the tool definitions.
    """
    from wander.train.data import Condition, select_rows, write_rows

    from wander_client.runs.lookup import find_run
    from wander_client.runs.text import shorten

    output = current().output
    if keep_repeats:
        refuse_options("near", because="drops duplicates, but `--keep-repeats` keeps them")
    conditions = [Condition.parse(text) for text in where or []]
    found_runs = [find_run(current(), run) for run in runs]
    rows, report = select_rows(
        (source for run in found_runs for source in _sources(run)),
        min_reward=min_reward,
        conditions=conditions,
        keep_repeats=keep_repeats,
        near=near,
        stop_reasons=stop_reason or (),
        whole=whole,
        per_example=per_example,
        per_stratum=per_stratum,
        samples=show_dropped,
    )
    for reason, count in sorted(report.dropped.items()):
        output.note(f"dropped {count}: {reason}")
        for sample in (sample for sample in report.samples if sample.reason == reason):
            reward = "none" if sample.reward is None else f"{sample.reward:.4g}"
            text = shorten(sample.said, 100)
            output.note(f"  {sample.example_id}/{sample.index}, reward {reward}: {text}")
    if not rows:
        output.warn(f"all {report.rollouts} rollouts were dropped; `{out}` was not written")
        return FAILED
    write_rows(rows, out)
    output.answer({"out": str(out), **asdict(report)}, f"{out}: {report.kept} of {report.rollouts} rollouts")
    output.next(f"wander model sft {shell_word(out)} --model MODEL --out models/NAME")
    return None


def _sources(run: FoundRun) -> Iterator[Sourced]:
    """Yield the rollouts of a run, each with its run ID, environment and stratum."""
    from wander.train.data import Sourced

    manifest = run.manifest
    strata = dict(zip(manifest.example_ids, manifest.strata, strict=False))
    pin = manifest.environment
    for rollout in run.rollouts():
        yield Sourced(
            rollout, manifest.run_id, f"{pin.owner or ''}/{pin.name}", strata.get(rollout.example_id)
        )
