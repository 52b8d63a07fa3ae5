"""`wander verify`: have the hub play a posted run again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.command import command_app
from wander_client.errors import FAILED, OK, ClientError, Interrupted
from wander_client.invocation import current

if TYPE_CHECKING:
    from wander.verification import VerificationInfo
    from wander.wire import RunDetail

    from wander_client.api import HubApi
    from wander_client.output import Output

app = command_app()

_LONGEST_PAUSE = 5.0


@app.command()
def verify(
    run: Annotated[str | None, typer.Argument(help="folder, run id, or nothing for the newest run")] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="play only so many rollouts, drawn at random")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="wait until it has done so")] = True,
) -> int:
    """Have the hub play a posted run again from its record, in its sandbox.

    \b
    wander verify runs/RUN
    wander verify RUN_ID --sample 100 --no-wait

    When every rollout comes out the same, bit for bit, the run's level is `replayed`; when one does not,
    it is `claimed`. `wander replay` does the same on this machine. Exit status 1: some came out otherwise.
    """
    from wander_client.runs import find_run

    here = current()
    run_id = find_run(run).manifest.run_id
    with here.hub(login=True) as hub:
        found = hub.request_verification(run_id, sample)
        if wait:
            found = _waited(hub, found, here.output)
        detail = hub.run(run_id)
    if found.state in ("failed", "cancelled"):
        raise ClientError(
            f"the hub could not play `{run_id}` again: {found.error or 'it was called off'}",
            hint=f"`wander replay {run_id}` does so on this machine",
            code="verification_failed",
        )
    data = {"level": detail.level, "level_reason": detail.level_reason, **found.model_dump(mode="json")}
    here.output.answer(data, lambda: _show(found, detail, here.output))
    here.output.note(detail.url)
    return FAILED if found.report is not None and (found.report.differing or found.report.refused) else OK


def _waited(hub: HubApi, found: VerificationInfo, output: Output) -> VerificationInfo:
    pause = 0.25
    try:
        with output.progress("the hub is replaying", None, unit="rollouts") as bar:
            while found.state in ("queued", "running"):
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 1.25)
                found = hub.verification(found.id)
                if "total" in found.progress:
                    bar.total = int(found.progress["total"])
                    bar.update(int(found.progress.get("done", 0)))
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; the hub goes on", hint=f"look again with `wander verify {found.run_id}`"
        ) from None
    return found


def _show(found: VerificationInfo, detail: RunDetail, output: Output) -> None:
    if found.report is None:
        output.line(f"verification {found.id} of {found.run_id} is {found.state}")
        return
    from wander_client.commands.replay import show_replay

    show_replay(found.report, output)
    output.line(f"level     {detail.level}: {detail.level_reason}")
