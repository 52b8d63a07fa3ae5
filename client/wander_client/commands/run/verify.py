"""`wander verify`: have the hub play a posted run again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.context import current
from wander_client.errors import FAILED, OK, ClientError, Interrupted, NotFound
from wander_client.terminal.command import command_app

if TYPE_CHECKING:
    from wander.wire import RunDetail
    from wander.wire.verification import VerificationInfo

    from wander_client.hub.api import HubApi
    from wander_client.terminal.output import Output

app = command_app()

_LONGEST_PAUSE = 5.0


@app.command()
def verify(
    run: Annotated[str | None, typer.Argument(help="folder, run id, or nothing for the newest run")] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="replay only this many rollouts, drawn at random")
    ] = None,
    level: Annotated[
        str, typer.Option(help="replayed, rescored or highest (what the environment allows)")
    ] = "highest",
    cancel: Annotated[bool, typer.Option("--cancel", help="cancel the verification of this run")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="wait for the result")] = True,
) -> int:
    """Have the hub play a posted run again from its record, in its sandbox.

    \b
    wander verify runs/RUN
    wander verify RUN_ID --sample 100 --no-wait
    wander verify RUN_ID --level rescored
    wander verify RUN_ID --cancel

    When every rollout comes out the same, bit for bit, the run's level is `replayed`; where outside
    observations enter the rollouts and the rubric gives the same rewards, `rescored`; when one does not,
    it is `claimed`. A sample is drawn by the hub when it begins. `wander replay` does the same on this
    machine. Exit status 1: some came out otherwise.
    """
    from wander.wire.verification import VerificationRequest

    from wander_client.commands.run.replay import level_sought
    from wander_client.runs.lookup import find_run

    here = current()
    wanted = VerificationRequest(sample=sample, level=level_sought(level))
    run_id = find_run(here, run).manifest.run_id
    with here.hub(login=True) as hub, _require_posted(run_id, run):
        if cancel:
            return _cancel(hub, run_id, here.output)
        found = hub.request_verification(run_id, wanted)
        if wait:
            found = _wait_for(hub, found, here.output)
        detail = hub.run(run_id)
    if found.state in ("failed", "cancelled"):
        raise ClientError(
            f"the hub could not replay `{run_id}`: {found.error or 'it was cancelled'}",
            hint=f"`wander replay {run_id}` does so on this machine",
            code="verification_failed",
        )
    data = {"level": detail.level, "level_reason": detail.level_reason, **found.model_dump(mode="json")}
    here.output.answer(data, lambda: _show(found, detail, here.output))
    here.output.note(detail.url)
    report = found.report
    return FAILED if report is not None and (report.differing or report.refused or report.unscored) else OK


@contextlib.contextmanager
def _require_posted(run_id: str, given: str | None) -> Iterator[None]:
    """Say of a run that the hub does not know that it has to be posted."""
    try:
        yield
    except NotFound as error:
        if error.code != "run_not_found":
            raise
        raise NotFound(
            f"the hub has no run `{run_id}`: it was not posted",
            hint=f"`wander post {given or run_id}` puts it there",
            code="run_not_found",
        ) from error


def _cancel(hub: HubApi, run_id: str, output: Output) -> int:
    """Cancel every verification of a run that waits or runs."""
    waiting = [one for one in hub.verifications(run_id) if one.state in ("queued", "running")]
    if not waiting:
        raise NotFound(
            f"no verification of `{run_id}` is pending",
            hint=f"`wander verify {run_id}` asks for one",
            code="verification_not_found",
        )
    ended = [hub.cancel_verification(one.id) for one in waiting]
    lines = [f"verification {one.id} of {one.run_id} is called off" for one in ended]
    output.answer([one.model_dump(mode="json") for one in ended], "\n".join(lines))
    return OK


def _wait_for(hub: HubApi, found: VerificationInfo, output: Output) -> VerificationInfo:
    pause = 0.25
    try:
        with output.progress("the hub is replaying", None, unit="rollouts") as bar:
            while found.state in ("queued", "running"):
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 1.25)
                found = hub.verification(found.id)
                if "total" in found.progress:
                    bar.total = int(found.progress["total"])
                    differing = int(found.progress.get("differing", 0))
                    said = f"{differing} differ" if differing else ""
                    bar.update(int(found.progress.get("done", 0)), said)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; the hub goes on", hint=f"look again with `wander verify {found.run_id}`"
        ) from None
    return found


def _show(found: VerificationInfo, detail: RunDetail, output: Output) -> None:
    if found.report is None:
        output.line(f"verification {found.id} of {found.run_id} is {found.state}")
        return
    from wander_client.commands.run.replay import show_replay

    show_replay(found.report, output)
    if found.report.sample_seed is not None:
        output.line(f"seed      {found.report.sample_seed}, which drew the sample")
    output.line(f"level     {detail.level}: {detail.level_reason}")
