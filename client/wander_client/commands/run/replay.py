"""`wander runs replay`, `wander runs verify`: play a run again from its record, here or on the hub."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.environments.location import parse_arguments
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits
from wander_client.errors import FAILED, OK, PARTIAL, Interrupted, NotFound
from wander_client.terminal.command import Argument, Option
from wander_client.terminal.suggestions import choose

if TYPE_CHECKING:
    from wander.wire import RunDetail
    from wander.wire.verification import ReplayReport, VerificationInfo

    from wander_client.hub.api import HubApi
    from wander_client.terminal.output import Output, Progress

Level = Annotated[str, Option(help="replayed, rescored or highest (what the environment allows)")]
Sample = Annotated[
    int | None, Option("--sample", min=1, help="replay only this many rollouts, drawn at random")
]

Arguments = Annotated[
    str | None, Option("--args", help="environment arguments, a JSON object (default: the run's)")
]


def replay(
    run: Annotated[str | None, Argument(help="folder, run id, or nothing for the newest run")] = None,
    level: Level = "replayed",
    sample: Sample = None,
    seed: Annotated[int, Option(help="draws the sample")] = 0,
    env: Annotated[Path | None, Option("--env", help="this folder instead of the pinned environment")] = None,
    no_lock: Annotated[
        bool, Option("--no-lock", help="use the newest packages instead of those of the run's lock")
    ] = False,
    concurrency: Annotated[int, Option("-c", "--concurrency", min=1, help="rollouts at once")] = 64,
    in_process: Annotated[bool, Option("--in-process", help="run a folder in this process")] = False,
    time_limit: Annotated[
        float | None, Option(help="most seconds for loading and replaying (default: none)")
    ] = None,
    arguments: Arguments = None,
    stream: Annotated[
        bool, Option("--stream", help="with --json: a line of progress a second before the answer")
    ] = False,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Play a run again from its recorded completions, without a model, and compare every rollout.

    \b
    wander runs replay runs/RUN
    wander runs replay RUN_ID --sample 100
    wander runs replay runs/RUN --env ./my-env       # what does my change do to recorded games?
    wander runs replay RUN_ID --level rescored       # the rubric alone, on the stored transcripts

    Messages, metrics and rewards must come out the same, bit for bit. Exit status 1 means that they do
    not, or that the environment cannot be replayed; 6 that rollouts are missing or failed.
    """
    import asyncio

    from wander.wire.verification import LEVELS_SOUGHT

    from wander_client.environments.replay import replay_in
    from wander_client.evaluate.repeating import prepare_replay
    from wander_client.runs.lookup import find_run

    output = current().output
    sought = choose("--level", level, LEVELS_SOUGHT[::-1])
    found = find_run(current(), run)
    given = None if arguments is None else parse_arguments([], arguments)
    asked = (sandbox, sandbox_limit)
    ready = prepare_replay(current(), found, given, env, asked, no_lock=no_lock, in_process=in_process)
    total = found.manifest.expected_rollouts
    if stream:  # all that was to be fetched and installed is here
        output.stream("progress", loading=True)
    with output.progress("replaying", total, unit="rollouts") as bar:
        report, made_with = asyncio.run(
            replay_in(
                current(),
                ready.location,
                ready.manifest,
                found.rollouts(),
                level=sought,
                sample=sample,
                seed=seed,
                concurrency=concurrency,
                in_process=in_process,
                sandbox=ready.sandbox,
                on_replayed=_tell_progress(bar, output, total if stream else None),
                time_limit=time_limit,
            )
        )
    data = {
        "level": report.level,
        **report.model_dump(mode="json"),
        "made_with": made_with.model_dump(mode="json") if made_with is not None else None,
    }
    output.answer(data, lambda: show_replay(report, output))
    if report.differing:
        first = report.divergences[0]
        output.next(f"wander view {found.place} --rollout {first.example_id}/{first.index}")
    if report.differing or report.refused or report.undecided:
        return FAILED
    return PARTIAL if report.level == "claimed" else OK


def _tell_progress(bar: Progress, output: Output, total: int | None) -> Callable[[int, int], None]:
    """Return what tells how far a replay is: the bar and, for a `total`, a line a second."""
    told_at = 0.0

    def tell(done: int, differing: int) -> None:
        nonlocal told_at
        bar.update(done, f"{differing} differ" if differing else "")
        if total is not None and time.monotonic() - told_at >= 1:
            told_at = time.monotonic()
            output.stream("progress", done=done, differing=differing, total=total)

    return tell


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
    if report.undecided:
        output.line(f"undecided {report.undecided}, which failed in the replay")
        output.line(f"          {report.undecided_reason}")
    if report.failed:
        output.line(f"failed    {report.failed}, not compared")
    if report.recorded < report.expected:
        output.line(f"missing   {report.expected - report.recorded}")
    for one in report.divergences[:10]:
        output.line(f"  {one.example_id}/{one.index}: {one.difference}")
    if len(report.divergences) > 10:
        output.line(f"  and {report.differing - 10} more: `--json` names {len(report.divergences)}")


def verify(
    run: Annotated[str | None, Argument(help="folder, run id, or nothing for the newest run")] = None,
    sample: Sample = None,
    level: Level = "highest",
    cancel: Annotated[bool, Option("--cancel", help="cancel the verification of this run")] = False,
    wait: Annotated[bool, Option("--wait/--no-wait", help="wait for the result")] = True,
) -> int:
    """Have the hub play a posted run again from its record, in its sandbox.

    \b
    wander runs verify runs/RUN
    wander runs verify RUN_ID --sample 100 --no-wait
    wander runs verify RUN_ID --level rescored
    wander runs verify RUN_ID --cancel

    When every rollout comes out the same, bit for bit, the run's level is `replayed`; where outside
    observations enter the rollouts and the rubric gives the same rewards, `rescored`; when one does not,
    it is `claimed`. A sample is drawn by the hub when it begins. `wander runs replay` does the same on this
    machine. Exit status 1: some came out otherwise.
    """
    from wander.wire.verification import LEVELS_SOUGHT, VerificationRequest

    from wander_client.hub.verification import require_played, require_posted
    from wander_client.runs.lookup import find_run

    here = current()
    wanted = VerificationRequest(sample=sample, level=choose("--level", level, LEVELS_SOUGHT[::-1]))
    run_id = find_run(here, run).manifest.run_id
    with here.hub(login=True) as hub, require_posted(run_id, run or run_id):
        if cancel:
            return _cancel(hub, run_id, here.output)
        found = hub.request_verification(run_id, wanted)
        if wait:
            found = _wait_for(hub, found, here.output)
        detail = hub.run(run_id)
    require_played(found)
    data = {"level": detail.level, "level_reason": detail.level_reason, **found.model_dump(mode="json")}
    here.output.answer(data, lambda: _show(found, detail, here.output))
    here.output.note(detail.url)
    report = found.report
    return FAILED if report is not None and (report.differing or report.refused or report.undecided) else OK


def _cancel(hub: HubApi, run_id: str, output: Output) -> int:
    """Cancel every verification of a run that waits or runs."""
    waiting = [one for one in hub.verifications(run_id) if one.state in ("queued", "running")]
    if not waiting:
        raise NotFound(
            f"no verification of `{run_id}` is pending",
            hint=f"`wander runs verify {run_id}` asks for one",
            code="verification_not_found",
        )
    ended = [hub.cancel_verification(one.id) for one in waiting]
    told = {"queued": "waits again", "running": "is called off soon"}
    lines = [f"verification {one.id} of {one.run_id} {told.get(one.state, 'is called off')}" for one in ended]
    output.answer([one.model_dump(mode="json") for one in ended], "\n".join(lines))
    return OK


def _wait_for(hub: HubApi, found: VerificationInfo, output: Output) -> VerificationInfo:
    from wander_client.hub.verification import watch_verification

    last = found
    try:
        with output.progress("the hub is replaying", None, unit="rollouts") as bar:
            for last in watch_verification(hub, found):
                if "total" in last.progress:
                    bar.total = int(last.progress["total"])
                    differing = int(last.progress.get("differing", 0))
                    said = f"{differing} differ" if differing else ""
                    bar.update(int(last.progress.get("done", 0)), said)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; the hub goes on", hint=f"look again with `wander runs verify {found.run_id}`"
        ) from None
    return last


def _show(found: VerificationInfo, detail: RunDetail, output: Output) -> None:
    if found.report is None:
        output.line(f"verification {found.id} of {found.run_id} is {found.state}")
        return
    show_replay(found.report, output)
    if found.report.sample_seed is not None:
        output.line(f"seed      {found.report.sample_seed}, which drew the sample")
    output.line(f"level     {detail.level}: {detail.level_reason}")
