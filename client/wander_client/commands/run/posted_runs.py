"""`wander runs publish|withdraw`: what who posted a run may do with it, and which one a word means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.context import current
from wander_client.errors import UsageError

if TYPE_CHECKING:
    from wander_client.hub.api import HubApi


def publish(
    run: Annotated[str, typer.Argument(help="a private run on the hub: its id, or the folder here")],
) -> None:
    """Make a private run of yours public, on its leaderboard too. This cannot be undone.

    \b
    wander runs publish RUN
    """
    from wander.wire import RunDetail

    here = current()
    with here.hub(login=True) as hub:
        run_id = resolve_posted_id(hub, run)
        detail = hub.change("POST", f"/api/v1/runs/{run_id}/publish", RunDetail)
    here.output.answer(detail, f"public: {detail.url}")


def withdraw(
    run: Annotated[str, typer.Argument(help="a run on the hub: its id, or the folder here")],
    reason: Annotated[str, typer.Option(help="reason, shown to everybody")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask for confirmation")] = False,
) -> None:
    """Remove the rollouts of a run you posted for good; its manifest, its digests and the reason stay.

    \b
    wander runs withdraw RUN --reason "evaluated with the wrong prompt"
    """
    from wander.wire import RunDetail

    here = current()
    with here.hub(login=True) as hub:
        run_id = resolve_posted_id(hub, run)
        if not yes and here.output.ask(f"Type `{run_id}` to withdraw it for good", flag="--yes") != run_id:
            raise UsageError(f"`{run_id}` was not confirmed: nothing was withdrawn", hint="or pass `--yes`")
        place = f"/api/v1/runs/{run_id}"
        detail = hub.change("DELETE", place, RunDetail, params={"reason": reason})
    here.output.answer(detail, f"withdrawn: {detail.url}")


def resolve_posted_id(hub: HubApi, word: str) -> str:
    """Return the whole id of the posted run that a word means: its id, the beginning, or the folder here."""
    from wander.evals.store.folder import RunFolder

    known = RunFolder.open(Path(word)).manifest.run_id if Path(word).is_dir() else word
    return hub.run(known).run_id
