"""`wander runs replay`, `wander runs verify`: replay a run, here or on the hub."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from wander_client.context import current
from wander_client.environments.location import parse_arguments
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits
from wander_client.errors import FAILED, OK, PARTIAL, Interrupted, NotFound
from wander_client.terminal.command import Argument, Option, refuse_options
from wander_client.terminal.output import shell_word

if TYPE_CHECKING:
    from wander.wire import RunDetail
    from wander.wire.verification import ReplayReport, VerificationInfo

    from wander_client.hub.api import HubApi
    from wander_client.terminal.output import Output, Progress

Level = Annotated[
    Literal["replayed", "rescored", "highest"],
    Option(help="level to reach; `highest` is the highest possible level for the environment"),
]
Sample = Annotated[int | None, Option("--sample", min=1, help="replay a random sample of N rollouts")]

Arguments = Annotated[
    str | None, Option("--args", help="environment arguments, a JSON object  [default: those of the run]")
]


def replay(
    run: Annotated[str | None, Argument(help="folder or run ID  [default: the newest run]")] = None,
    level: Level = "replayed",
    sample: Sample = None,
    seed: Annotated[int, Option(help="seed of the sample")] = 0,
    env: Annotated[Path | None, Option("--env", help="use this folder, not the pinned environment")] = None,
    no_lock: Annotated[
        bool, Option("--no-lock", help="use the newest packages instead of the run's lock")
    ] = False,
    concurrency: Annotated[int, Option("-c", "--concurrency", min=1, help="concurrent rollouts")] = 64,
    in_process: Annotated[bool, Option("--in-process", help="run the --env folder in this process")] = False,
    time_limit: Annotated[
        float | None, Option(help="limit in seconds for loading and replaying  [default: no limit]")
    ] = None,
    arguments: Arguments = None,
    stream: Annotated[bool, Option("--stream", help="with --json: also print progress lines")] = False,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Replay a run from its recorded completions, without a model, and compare every rollout.

    \b
    wander runs replay runs/RUN
    wander runs replay RUN_ID --sample 100
    wander runs replay runs/RUN --env ./my-env       # how does my change affect recorded games?
    wander runs replay RUN_ID --level rescored       # only the rubric, on the stored transcripts

    Messages, metrics and rewards must be the same, bit for bit. Exit status 1 means that a rollout differs or
    that the environment cannot be replayed. Exit status 6 means that rollouts are missing or failed.
    """
    import asyncio

    from wander_client.environments.replay import replay_in
    from wander_client.evaluate.repeating import prepare_replay
    from wander_client.runs.lookup import find_run

    output = current().output
    _require_effect(sample, env)
    source = find_run(current(), run)
    new_arguments = None if arguments is None else parse_arguments([], arguments)
    sandbox_options = (sandbox, sandbox_limit)
    ready = prepare_replay(
        current(), source, new_arguments, env, sandbox_options, no_lock=no_lock, in_process=in_process
    )
    total = source.manifest.expected_rollouts
    if stream:  # everything is downloaded and installed now
        output.stream("progress", loading=True)
    with output.progress("replaying", total, unit="rollouts") as bar:
        report, made_with = asyncio.run(
            replay_in(
                current(),
                ready.location,
                ready.manifest,
                source.rollouts(),
                level=level,
                sample=sample,
                seed=seed,
                concurrency=concurrency,
                in_process=in_process,
                sandbox=ready.sandbox,
                on_replayed=_progress_callback(bar, output, total if stream else None),
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
        output.next(f"wander view {shell_word(source.location)} --rollout {first.example_id}/{first.index}")
    if report.differing or report.refused or report.undecided:
        return FAILED
    return PARTIAL if report.level == "claimed" else OK


def _require_effect(sample: int | None, env: Path | None) -> None:
    """Raise `UsageError` for an option that requires another one."""
    if sample is None:
        refuse_options("seed", because="is the seed of a sample, and requires `--sample`")
    if env is not None:
        refuse_options("no_lock", because="applies to the pinned environment, and `--env` replaces it")
    if not current().output.json:
        refuse_options("stream", because="requires `--json`")


def _progress_callback(bar: Progress, output: Output, total: int | None) -> Callable[[int, int], None]:
    """Return a callback that updates the bar and, if `total` is given, streams a line every second."""
    streamed_at = 0.0

    def report(done: int, differing: int) -> None:
        nonlocal streamed_at
        bar.update(done, f"{differing} differ" if differing else "")
        if total is not None and time.monotonic() - streamed_at >= 1:
            streamed_at = time.monotonic()
            output.stream("progress", done=done, differing=differing, total=total)

    return report


def show_replay(report: ReplayReport, output: Output) -> None:
    """Print the result of a replay: the counts, then the first rollouts that differ."""
    if report.refused is not None:
        output.line(f"not replayed: {report.refused}")
        return
    count = f"a sample of {report.replayed}" if report.sampled else f"{report.replayed}"
    done = "rescored" if report.method == "rescore" else "replayed"
    output.line(f"{done}  {count} of {report.expected} rollouts in {report.seconds:.1f} s")
    output.line(f"same      {report.same}")
    output.line(f"differ    {report.differing}", style="error" if report.differing else None)
    if report.undecided:
        output.line(f"undecided {report.undecided}, because they failed in the replay")
        output.line(f"          {report.undecided_reason}")
    if report.failed:
        output.line(f"failed    {report.failed}, not compared")
    if report.recorded < report.expected:
        output.line(f"missing   {report.expected - report.recorded}")
    for divergence in report.divergences[:10]:
        output.line(f"  {divergence.example_id}/{divergence.index}: {divergence.difference}")
    if len(report.divergences) > 10:
        output.line(f"  and {report.differing - 10} more; `--json` lists {len(report.divergences)}")


def verify(
    run: Annotated[str | None, Argument(help="folder or run ID  [default: the newest run]")] = None,
    sample: Sample = None,
    level: Level = "highest",
    cancel: Annotated[bool, Option("--cancel", help="cancel the verification of this run")] = False,
    wait: Annotated[bool, Option("--wait/--no-wait", help="wait for the result, or only request it")] = True,
) -> int:
    """Ask the hub to replay a posted run in its sandbox.

    \b
    wander runs verify runs/RUN
    wander runs verify RUN_ID --sample 100 --no-wait
    wander runs verify RUN_ID --level rescored
    wander runs verify RUN_ID --cancel

    If every rollout comes out the same, bit for bit, the run's level becomes `replayed`. If the environment
    declares `deterministic=False`, for example because it asks a judge, the hub only recomputes the rewards,
    and the level becomes `rescored`. If a rollout differs, the level becomes `claimed`. Exit status 1 means
    that some rollouts differ. `wander runs replay` replays a run on this machine.
    """
    from wander.wire.verification import VerificationRequest

    from wander_client.hub.verification import require_played, require_posted
    from wander_client.runs.lookup import find_run

    here = current()
    if cancel:
        refuse_options("sample", "level", "wait", because="cannot be used with `--cancel`")
    wanted = VerificationRequest(sample=sample, level=level)
    run_id = find_run(here, run).manifest.run_id
    with here.hub(login=True) as hub, require_posted(run_id, run or run_id):
        if cancel:
            return _cancel(hub, run_id, here.output)
        verification = hub.request_verification(run_id, wanted)
        if wait:
            verification = _wait_for(hub, verification, here.output)
        detail = hub.run(run_id)
    require_played(verification)
    data = {
        "level": detail.level,
        "level_reason": detail.level_reason,
        **verification.model_dump(mode="json"),
    }
    here.output.answer(data, lambda: _show(verification, detail, here.output))
    here.output.note(detail.url)
    report = verification.report
    return FAILED if report is not None and (report.differing or report.refused or report.undecided) else OK


def _cancel(hub: HubApi, run_id: str, output: Output) -> int:
    """Cancel all pending verifications of a run."""
    pending = [item for item in hub.verifications(run_id) if item.state in ("queued", "running")]
    if not pending:
        raise NotFound(
            f"`{run_id}` has no pending verification",
            hint=f"run `wander runs verify {run_id}` to request one",
            code="verification_not_found",
        )
    canceled = [hub.cancel_verification(item.id) for item in pending]
    texts = {"queued": "is queued again", "running": "will be canceled soon"}
    lines = [
        f"verification {item.id} of {item.run_id} {texts.get(item.state, 'is canceled')}" for item in canceled
    ]
    output.answer([item.model_dump(mode="json") for item in canceled], "\n".join(lines))
    return OK


def _wait_for(hub: HubApi, verification: VerificationInfo, output: Output) -> VerificationInfo:
    from wander_client.hub.verification import watch_verification

    last = verification
    try:
        with output.progress("the hub is replaying", None, unit="rollouts") as bar:
            for last in watch_verification(hub, verification):
                if "total" in last.progress:
                    bar.total = int(last.progress["total"])
                    differing = int(last.progress.get("differing", 0))
                    note = f"{differing} differ" if differing else ""
                    bar.update(int(last.progress.get("done", 0)), note)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; the hub continues",
            hint=f"check the result later: `wander runs verify {verification.run_id}`",
        ) from None
    return last


def _show(verification: VerificationInfo, detail: RunDetail, output: Output) -> None:
    if verification.report is None:
        output.line(f"verification {verification.id} of {verification.run_id} is {verification.state}")
        return
    show_replay(verification.report, output)
    if verification.report.sample_seed is not None:
        output.line(f"seed      {verification.report.sample_seed} (of the sample)")
    output.line(f"level     {detail.level}: {detail.level_reason}")
