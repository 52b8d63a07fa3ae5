"""`wander eval --exhaustive`: walk every line of an environment and report how they ended."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wander_client.errors import OK, PARTIAL, Interrupted, NothingScored
from wander_client.evaluate.evaluation import Evaluation, begin, resume_command
from wander_client.models.pool import ModelPool
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wander.evals.exhaustive import WalkProgress, WalkResult
    from wander.types import Rollout

    from wander_client.environments.opening import OpenedEnvironment
    from wander_client.terminal.output import Output, Progress

SHOWN = 20
"""Most lines that are printed move by move; `--json` and `wander view` have all."""
BOARD_WIDTH = 24
"""Widest message that stands beside others of its line."""


def walk_and_report(evaluation: Evaluation) -> int:
    """Walk every line, record them in the folder, and print what was lost."""
    output = evaluation.context.output
    with output.progress("walking", None, unit="lines") as bar:
        result = asyncio.run(_walk(evaluation, bar))
    if result.interrupted:
        raise Interrupted(
            f"interrupted; {counted(result.count.lines, 'line')} are kept in `{evaluation.run_dir}`",
            hint=f"go on with `{resume_command(evaluation.run_dir)}`",
        )
    if result.count.failed == result.count.lines:
        failure = result.bad[0].failure
        assert failure is not None
        raise NothingScored(
            f"no line could be played: {failure.boundary}: {failure.message}",
            hint=f"mend the cause, then go on with `{resume_command(result.run_dir)}`",
        )
    return _report(result, output)


async def _walk(evaluation: Evaluation, bar: Progress) -> WalkResult:
    from wander.evals.exhaustive import WalkPlan, walk

    settings, output = evaluation.settings, evaluation.context.output
    plan = WalkPlan(
        seed=settings.seed,
        sampling=settings.sampling,
        concurrency=settings.max_rollouts or max(512, settings.concurrency),
        max_lines=settings.max_lines,
    )

    def on_start(opened: OpenedEnvironment) -> None:
        version = f" {opened.pin.version}" if opened.pin.version else ""
        output.note(
            f"walking every line of {evaluation.location.label}{version} with {settings.model}, greedily\n"
            f"saving to {evaluation.run_dir}"
        )

    def on_progress(progress: WalkProgress) -> None:
        # How many lines there are shows only at the end.
        bar.update(progress.lines, f"{progress.conversations:,} conversations  {progress.lost} lost")

    async with (
        ModelPool(evaluation.context) as pool,
        begin(evaluation, pool, on_start=on_start) as (environment, client, stop),
    ):
        return await walk(
            environment.handle,
            client,
            plan,
            evaluation.run_dir,
            environment.pin,
            resume=evaluation.resume,
            on_progress=on_progress,
            stop=stop,
        )


def _report(result: WalkResult, output: Output) -> int:
    data = {
        "run_id": result.manifest.run_id,
        "run_dir": str(result.run_dir),
        "environment": result.manifest.environment.model_dump(mode="json", exclude={"info"}),
        "model": result.manifest.model.model_dump(mode="json"),
        **asdict(result.count),
        "clean": result.count.clean and not result.unexplored,
        "conversations": result.conversations,
        "unexplored": result.unexplored,
        "openings": {name: asdict(count) for name, count in result.by_opening.items()},
        "bad_lines": [_line_data(rollout) for rollout in result.bad],
    }
    output.answer(data, lambda: _show(result, output))
    if result.unexplored:
        output.warn(
            f"the walk ended at {counted(result.count.lines, 'line')}; at least "
            f"{result.unexplored:,} more begin where it ended: `--set max_lines=N` allows more"
        )
    if result.count.failed:
        output.warn(f"{counted(result.count.failed, 'line')} failed; resume to play them again")
    if result.bad:
        # A rollout of a run is named by its opening and number.
        first = result.bad[0]
        output.next(f"wander view {result.run_dir} --rollout {first.example_id}/{first.index}")
    output.next(f"wander runs replay {result.run_dir}")
    return PARTIAL if result.count.failed or result.unexplored else OK


def _line_data(rollout: Rollout) -> dict[str, Any]:
    from wander.clients.choices import line_of
    from wander.evals.exhaustive import INVALID, outcome_of

    from wander_client.runs.text import message_text

    return {
        "opening": rollout.example_id,
        "index": rollout.index,
        "outcome": outcome_of(rollout),
        "invalid_moves": rollout.metrics.get(INVALID, 0.0),
        "replies": line_of(rollout)["choices"],
        "completions": [message_text(turn.message) for turn in rollout.turns],
        "messages": [*rollout.prompt, *rollout.completion],
        "failure": None if rollout.failure is None else rollout.failure.model_dump(mode="json"),
    }


def _show(result: WalkResult, output: Output) -> None:
    count = result.count
    ends = [f"{count.won:,} won", f"{count.drawn:,} drawn", f"{count.lost:,} lost"]
    ends += [f"{count.unfinished:,} unfinished"] if count.unfinished else []
    ends += [f"{count.failed:,} failed"] if count.failed else []
    said = f"{counted(count.lines, 'line')}: {', '.join(ends)}; {count.invalid:,} with an invalid move"
    output.line(said, style="bold")
    output.line(f"{result.conversations:,} conversations were asked; each line is one sequence of replies")
    output.line()
    output.table(
        ["opening", "lines", "won", "drawn", "lost", "unfinished", "failed", "invalid"],
        [[name, *asdict(each).values()] for name, each in result.by_opening.items()],
    )
    for rollout in result.bad[:SHOWN]:
        output.line()
        for text in line_text(rollout):
            output.line(text)
    if len(result.bad) > SHOWN:
        more = len(result.bad) - SHOWN
        output.note(f"{more:,} more such lines: `--json` has all, `wander view` shows each")


def line_text(rollout: Rollout) -> Iterator[str]:
    """Yield a line of play as text: how it ended, what was said, and the positions side by side."""
    from wander.clients.choices import line_of
    from wander.evals.exhaustive import outcome_of

    from wander_client.runs.text import message_text, shorten

    replies = " ".join(str(choice) for choice in line_of(rollout)["choices"])
    yield f"{outcome_of(rollout)}: {rollout.example_id}/{rollout.index}, replies {replies or 'none'}"
    if rollout.failure is not None:
        yield f"  failed at the {rollout.failure.boundary}: {rollout.failure.message}"
    for turn in rollout.turns:
        yield f"  model  {shorten(message_text(turn.message), 100)}"
    said = [*rollout.prompt[-1:], *(one for one in rollout.completion if one.get("role") != "assistant")]
    yield from side_by_side([message_text(message) for message in said])


def side_by_side(texts: list[str], width: int = 100) -> Iterator[str]:
    """Yield texts as columns, as many beside each other as fit; a wide one stands alone."""
    row: list[list[str]] = []
    taken = 0
    for text in texts:
        lines = text.splitlines() or [""]
        wide = max(len(line) for line in lines)
        if row and (taken + wide + 4 > width or wide > BOARD_WIDTH):
            yield from _columns(row)
            row, taken = [], 0
        row.append(lines)
        taken += wide + 4
    yield from _columns(row)


def _columns(row: list[list[str]]) -> Iterator[str]:
    height = max((len(lines) for lines in row), default=0)
    # Aligned at the bottom: a result stands above its position.
    columns = [[""] * (height - len(lines)) + lines for lines in row]
    widths = [max(len(line) for line in lines) for lines in columns]
    for number in range(height):
        cells = [lines[number].ljust(width) for lines, width in zip(columns, widths, strict=True)]
        yield ("  " + "    ".join(cells)).rstrip()
