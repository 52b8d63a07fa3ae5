"""`wander replay`: play a run again from its record and compare every rollout."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.context import current
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits, choose_policy, require_confined
from wander_client.errors import FAILED, OK, PARTIAL
from wander_client.terminal.command import command_app

if TYPE_CHECKING:
    from wander.wire.verification import LevelSought, ReplayReport

    from wander_client.runs.found import FoundRun
    from wander_client.terminal.output import Output, Progress

app = command_app()


@app.command()
def replay(
    run: Annotated[str | None, typer.Argument(help="folder, run id, or nothing for the newest run")] = None,
    level: Annotated[
        str, typer.Option(help="replayed, rescored or highest (what the environment allows)")
    ] = "replayed",
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="replay only this many rollouts, drawn at random")
    ] = None,
    seed: Annotated[int, typer.Option(help="draws the sample")] = 0,
    env: Annotated[
        Path | None, typer.Option("--env", help="this folder instead of the pinned environment")
    ] = None,
    no_lock: Annotated[
        bool, typer.Option("--no-lock", help="use the newest packages instead of those of the run's lock")
    ] = False,
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="rollouts at once")] = 64,
    in_process: Annotated[bool, typer.Option("--in-process", help="run a folder in this process")] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="with --json: a line of progress a second before the answer")
    ] = False,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Play a run again from its recorded completions, without a model, and compare every rollout.

    \b
    wander replay runs/RUN
    wander replay RUN_ID --sample 100
    wander replay runs/RUN --env ./my-env       # what does my change do to recorded games?
    wander replay RUN_ID --level rescored       # the rubric alone, on the stored transcripts

    Messages, metrics and rewards must come out the same, bit for bit. Exit status 1 means that they do
    not, or that the environment cannot be replayed; 6 that rollouts are missing or failed.
    """
    from wander_client.environments.replay import locate_pinned, replay_in
    from wander_client.runs.lookup import find_run

    output = current().output
    sought = level_sought(level)
    found = find_run(current(), run)
    location = locate_pinned(current(), found.manifest.environment, folder=env, no_lock=no_lock)
    policy = choose_policy(sandbox, sandbox_limit, default=current().settings.sandbox)
    require_confined(current(), policy, location, "replay", in_process=in_process)
    total = found.manifest.expected_rollouts
    with output.progress("replaying", total, unit="rollouts") as bar:
        told = _Telling(bar, output, total, stream=stream)
        report, made_with = asyncio.run(
            replay_in(
                current(),
                location,
                found.manifest,
                found.rollouts(),
                level=sought,
                sample=sample,
                seed=seed,
                concurrency=concurrency,
                in_process=in_process,
                sandbox=policy,
                on_replayed=told,
            )
        )
    data = {
        "level": report.level,
        **report.model_dump(mode="json"),
        "made_with": made_with.model_dump(mode="json") if made_with is not None else None,
    }
    output.answer(data, lambda: show_replay(report, output))
    if report.differing:
        _next(found, report, output)
    if report.differing or report.refused or report.unscored:
        return FAILED
    return PARTIAL if report.level == "claimed" else OK


def level_sought(word: str) -> LevelSought:
    """Return the level that a word asks for; raises `UsageError`."""
    from wander.wire.verification import LEVELS_SOUGHT

    from wander_client.errors import UsageError

    for level in LEVELS_SOUGHT:
        if word == level:
            return level
    raise UsageError(f"`--level {word}` is unknown", hint="use `replayed`, `rescored` or `highest`")


class _Telling:
    """Takes the progress of a replay, to the bar and, where asked, as lines of JSON."""

    def __init__(self, bar: Progress, output: Output, total: int, *, stream: bool) -> None:
        self._bar = bar
        self._output = output
        self._total = total
        self._stream = stream
        self._at = 0.0

    def __call__(self, done: int, differing: int) -> None:
        """Tell how far it is."""
        self._bar.update(done, f"{differing} differ" if differing else "")
        if self._stream and time.monotonic() - self._at >= 1:
            self._at = time.monotonic()
            self._output.stream("progress", done=done, differing=differing, total=self._total)


def show_replay(report: ReplayReport, output: Output) -> None:
    """Print what a replay came to: the counts, then the first rollouts that differ."""
    if report.refused is not None:
        output.line(f"not replayed: {report.refused}")
        return
    of = f"a sample of {report.replayed}" if report.sampled else f"{report.replayed}"
    done = "rescored" if report.method == "rescore" else "replayed"
    output.line(f"{done}  {of} of {report.expected} rollouts in {report.seconds:.1f} s")
    output.line(f"same      {report.same}")
    output.line(f"differ    {report.differing}", style="error" if report.differing else None)
    if report.unscored:
        output.line(f"unscored  {report.unscored}: the rubric needs more than the transcript")
        output.line(f"          {report.unscored_reason}")
    if report.failed:
        output.line(f"failed    {report.failed}, not compared")
    if report.recorded < report.expected:
        output.line(f"missing   {report.expected - report.recorded}")
    for one in report.divergences[:10]:
        output.line(f"  {one.example_id}/{one.index}: {one.difference}")
    if len(report.divergences) > 10:
        output.line(f"  and {report.differing - 10} more: `--json` names {len(report.divergences)}")


def _next(found: FoundRun, report: ReplayReport, output: Output) -> None:
    first = report.divergences[0]
    output.next(f"wander view {found.place} --rollout {first.example_id}/{first.index}")
