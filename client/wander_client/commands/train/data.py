"""`wander runs data`: turn rollouts into rows that a model can be fine-tuned on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import FAILED
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wander.train.data import Sourced

    from wander_client.runs.found import FoundRun


def data(
    runs: Annotated[list[str], Argument(help="folders or ids of runs, here or on the hub")],
    out: Annotated[Path, Option("-o", "--out", help="file to write the rows to")],
    min_reward: Annotated[float | None, Option(help="drop rollouts with a lower reward")] = None,
    where: Annotated[
        list[str] | None,
        Option(help="keep rollouts that meet a condition, such as `lost==0`; repeatable"),
    ] = None,
    stop_reason: Annotated[
        list[str] | None, Option(help="keep rollouts with this stop reason; repeatable")
    ] = None,
    whole: Annotated[bool, Option("--whole", help="drop truncated rollouts")] = False,
    near: Annotated[bool, Option("--near", help="drop near duplicates: rollouts of the same words")] = False,
    keep_repeats: Annotated[bool, Option("--keep-repeats", help="keep duplicate conversations")] = False,
    per_example: Annotated[
        int | None, Option(min=1, help="keep only this many of each example, the best")
    ] = None,
    per_stratum: Annotated[
        int | None, Option(min=1, help="keep only this many of each stratum, the best")
    ] = None,
    show_dropped: Annotated[int, Option(min=0, help="print this many dropped rollouts for each reason")] = 0,
) -> int | None:
    """Turn the rollouts of runs into training rows, and say what was dropped and why.

    \b
    wander runs data runs/RUN --min-reward 0.5 --out rows.jsonl
    wander runs data runs/RUN --where lost==0 --where 'tokens<200' --whole --out rows.jsonl
    wander runs data runs/ONE runs/TWO --near --per-example 1 --show-dropped 3 --out rows.jsonl

    A measure is `reward`, a reward function, or `turns`, `tokens` (of the completions), `prompt_tokens`,
    `characters` or `truncated`. Rows keep tool calls and the tools that were offered.
    """
    from wander.train.data import Condition, select_rows, write_rows

    from wander_client.runs.lookup import find_run
    from wander_client.runs.text import shorten

    output = current().output
    conditions = [Condition.parse(text) for text in where or []]
    found = [find_run(current(), run) for run in runs]
    rows, report = select_rows(
        (source for run in found for source in _sources(run)),
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
        for one in (one for one in report.samples if one.reason == reason):
            reward = "none" if one.reward is None else f"{one.reward:.4g}"
            said = shorten(one.said, 100)
            output.note(f"  {one.example_id}/{one.index}, reward {reward}: {said}")
    if not rows:
        output.warn(f"nothing is left of {report.rollouts} rollouts; `{out}` was not written")
        return FAILED
    write_rows(rows, out)
    output.answer({"out": str(out), **asdict(report)}, f"{out}: {report.kept} of {report.rollouts} rollouts")
    output.next(f"wander model sft {out} --model MODEL --out models/NAME")
    return None


def _sources(found: FoundRun) -> Iterator[Sourced]:
    """Yield the rollouts of a run with what its manifest says of each."""
    from wander.train.data import Sourced

    manifest = found.manifest
    strata = dict(zip(manifest.example_ids, manifest.strata, strict=False))
    pin = manifest.environment
    for rollout in found.rollouts():
        yield Sourced(
            rollout, manifest.run_id, f"{pin.owner or ''}/{pin.name}", strata.get(rollout.example_id)
        )
