"""`wander post`: put a run on the hub's leaderboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wander_client.context import current
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from wander.wire import RunDetail


def post(
    run: Annotated[str | None, Argument(help="folder, run id, or nothing for the newest run")] = None,
    private: Annotated[
        bool,
        Option("--private", help="visible only to you and those with a role on the environment; on no board"),
    ] = False,
    sign: Annotated[
        bool, Option("--sign", help="sign with this machine's key (`wander auth key new`)")
    ] = False,
    incomplete: Annotated[bool, Option("--incomplete", help="post even though rollouts are missing")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="show what would be sent")] = False,
) -> None:
    """Put a run on the hub's leaderboard: its manifest and every rollout, for all to read.

    \b
    wander post runs/RUN --dry-run
    wander post runs/RUN
    wander post runs/RUN --private

    The hub derives every number again from the rollouts. Rollouts go in chunks: when the network or a machine
    fails, the same command goes on where it stopped. Posting the same run twice changes nothing.
    """
    from wander_client.hub.posting import files_of
    from wander_client.runs import posting
    from wander_client.runs.lookup import run_folder

    here = current()
    folder = run_folder(here, run)
    manifest = folder.manifest
    with posting.pack(here, folder, incomplete=incomplete) as parcel:
        files = files_of(folder.path)
        for path in files:
            here.output.note(f"  {path.stat().st_size:>12,}  {path.name}")
        name = manifest.environment.full_name
        data: dict[str, Any] = {
            "run_id": manifest.run_id,
            "environment": f"{name}@{manifest.environment.version}",
            "files": [{"filename": path.name, "size": path.stat().st_size} for path in files],
            "rollouts": parcel.count,
            "sha256": parcel.sha256,
            "private": private,
            "dry_run": dry_run,
        }
        if dry_run:
            said = f"would post {manifest.run_id} to {here.settings.hub} ({data['environment']})"
            here.output.answer(data, said)
            return
        detail, new = posting.send(here, parcel, private=private, sign=sign)
    data |= {**detail.model_dump(mode="json", by_alias=True), "new": new}
    here.output.answer(data, _lines(detail, new=new))
    here.output.note(detail.url)
    if detail.private:
        here.output.next(f"wander runs publish {manifest.run_id}")
    elif manifest.kind == "evaluation":
        here.output.next(f"wander leaderboard {name}")


def _lines(detail: RunDetail, *, new: bool) -> str:
    from wander_client.runs.text import interval

    why = f": {detail.level_reason}" if detail.level_reason else ""
    seen = ", private" if detail.private else ""
    # The few rollouts that training keeps to be read say nothing of how it came out.
    reward = "" if detail.manifest.kind == "training" else f"  reward {interval(detail.summary)}"
    return (
        f"{'posted' if new else 'already posted'} {detail.run_id}{seen}{reward}\n"
        f"level   {detail.level}{why}\n"
        f"digest  sha256:{detail.sha256}"
        + (f"\nsigned  {detail.signature.fingerprint[:16]}" if detail.signature else "")
    )
