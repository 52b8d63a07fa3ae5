"""`wander eval --set exhaustive=true`: play every line of an environment, and report how the lines ended."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wander_client.errors import OK, PARTIAL, Interrupted, NothingScored
from wander_client.evaluate.evaluation import Evaluation, begin, resume_command
from wander_client.models.pool import ModelPool
from wander_client.terminal.output import counted, shell_word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wander.evals.exhaustive import WalkProgress, WalkResult
    from wander.types import Rollout

    from wander_client.environments.opening import OpenedEnvironment
    from wander_client.terminal.output import Output, Progress

SHOWN = 20
"""Maximum number of lines that are printed move by move. `--json` and `wander view` show all of them."""
BOARD_WIDTH = 24
"""Maximum width of a message that is printed next to other messages."""


def walk_and_report(evaluation: Evaluation) -> int:
    """Play every line, save the lines in the folder, and print the lines that were lost."""
    output = evaluation.context.output
    with output.progress("playing", None, unit="lines") as bar:
        result = asyncio.run(_walk(evaluation, bar))
    if result.interrupted:
        raise Interrupted(
            f"interrupted; {counted(result.count.lines, 'line')} saved in `{evaluation.run_dir}`",
            hint=f"resume with `{resume_command(evaluation.run_dir)}`",
        )
    if result.count.failed == result.count.lines:
        failure = result.bad[0].failure
        assert failure is not None
        raise NothingScored(
            f"no line could be played: {failure.boundary}: {failure.message}",
            hint=f"fix the cause, then resume with `{resume_command(result.run_dir)}`",
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
            f"playing every line of {evaluation.location.label}{version} with {settings.model}, with greedy "
            "decoding\n"
            f"saving to {evaluation.run_dir}"
        )

    def on_progress(progress: WalkProgress) -> None:
        # The number of lines is known only at the end.
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
            f"stopped after {counted(result.count.lines, 'line')}; at least {result.unexplored:,} more "
            "were not played: raise the limit with `--set max_lines=N`"
        )
    if result.count.failed:
        output.warn(f"{counted(result.count.failed, 'line')} failed; resume the run to play them again")
    if result.bad:
        # `--rollout` accepts the opening and the index of a line.
        first = result.bad[0]
        output.next(f"wander view {shell_word(result.run_dir)} --rollout {first.example_id}/{first.index}")
    output.next(f"wander runs replay {shell_word(result.run_dir)}")
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
    summary = f"{counted(count.lines, 'line')}: {', '.join(ends)}; {count.invalid:,} with an invalid move"
    output.line(summary, style="bold")
    output.line(f"{result.conversations:,} different conversations; each line is a sequence of replies")
    output.line()
    output.table(
        ["opening", "lines", "won", "drawn", "lost", "unfinished", "failed", "invalid"],
        [[name, *asdict(opening_count).values()] for name, opening_count in result.by_opening.items()],
    )
    for rollout in result.bad[:SHOWN]:
        output.line()
        for text in line_text(rollout):
            output.line(text)
    if len(result.bad) > SHOWN:
        more = len(result.bad) - SHOWN
        output.note(
            f"{more:,} more lines like these; `--json` lists all, and `wander view` shows each of them"
        )


def line_text(rollout: Rollout) -> Iterator[str]:
    """Yield a line of play as text: its outcome, the model's moves, and the positions next to each other."""
    from wander.clients.choices import line_of
    from wander.evals.exhaustive import outcome_of

    from wander_client.runs.text import message_text, shorten

    replies = " ".join(str(choice) for choice in line_of(rollout)["choices"])
    yield f"{outcome_of(rollout)}: {rollout.example_id}/{rollout.index}, replies {replies or 'none'}"
    if rollout.failure is not None:
        yield f"  failed at the {rollout.failure.boundary}: {rollout.failure.message}"
    for turn in rollout.turns:
        yield f"  model  {shorten(message_text(turn.message), 100)}"
    messages = [
        *rollout.prompt[-1:],
        *(part for part in rollout.completion if part.get("role") != "assistant"),
    ]
    yield from side_by_side([message_text(message) for message in messages])


def side_by_side(texts: list[str], width: int = 100) -> Iterator[str]:
    """Yield texts as columns, as many per row as fit. A wide text gets its own row."""
    row: list[list[str]] = []
    used_width = 0
    for text in texts:
        lines = text.splitlines() or [""]
        text_width = max(len(line) for line in lines)
        if row and (used_width + text_width + 4 > width or text_width > BOARD_WIDTH):
            yield from _columns(row)
            row, used_width = [], 0
        row.append(lines)
        used_width += text_width + 4
    yield from _columns(row)


def _columns(row: list[list[str]]) -> Iterator[str]:
    height = max((len(lines) for lines in row), default=0)
    # Aligned at the bottom, so that a message about the result is above its position.
    columns = [[""] * (height - len(lines)) + lines for lines in row]
    widths = [max(len(line) for line in lines) for lines in columns]
    for number in range(height):
        cells = [lines[number].ljust(width) for lines, width in zip(columns, widths, strict=True)]
        yield ("  " + "    ".join(cells)).rstrip()
