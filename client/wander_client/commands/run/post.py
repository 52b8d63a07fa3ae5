"""`wander post`: put a run on the hub's leaderboard."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from wander_client.context import current
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from wander.evals.store.folder import RunFolder
    from wander.wire import RunDetail

    from wander_client.hub.posting import Parcel


def post(
    runs: Annotated[
        list[str] | None, Argument(help="folders, run ids or a suite's folder, or nothing for the newest run")
    ] = None,
    private: Annotated[
        bool,
        Option("--private", help="visible only to you and those with a role on the environment; on no board"),
    ] = False,
    sign: Annotated[
        bool, Option("--sign", help="sign with this machine's key (`wander auth key new`)")
    ] = False,
    name: Annotated[str, Option(help="what the run is called in lists and on boards")] = "",
    incomplete: Annotated[bool, Option("--incomplete", help="post even though rollouts are missing")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="show what would be sent")] = False,
) -> None:
    """Put runs on the hub's leaderboards: their manifests and every rollout, for all to read.

    \b
    wander post runs/RUN --dry-run
    wander post runs/RUN
    wander post runs/RUN --private
    wander post runs/RUN --name "longer prompt"
    wander post runs/nightly                the runs of a suite

    The hub derives every number again from the rollouts. Rollouts go in chunks: when the network or a machine
    fails, the same command continues where it stopped. Posting the same run twice changes nothing. Of several
    runs, none is sent before all of them are found fit to be posted.
    """
    from wander_client.errors import UsageError
    from wander_client.runs import posting
    from wander_client.runs.lookup import run_folder
    from wander_client.suites.folder import expand_suites

    here = current()
    words = expand_suites(here.settings.runs_dir, runs or (), incomplete=incomplete)
    found_folders = [run_folder(here, word) for word in words] or [run_folder(here, None)]
    folders = {folder.manifest.run_id: folder for folder in found_folders}
    if name and len(folders) > 1:
        raise UsageError("`--name` names one run", hint="post them one by one, or without it")
    is_one = len(words) <= 1 and words == list(runs or ())
    found: list[tuple[dict[str, Any], str]] = []
    with ExitStack() as stack:
        parcels = [
            (folder, stack.enter_context(posting.pack(here, folder, incomplete=incomplete)))
            for folder in folders.values()
        ]
        for folder, parcel in parcels:
            data = _describe(folder, parcel) | {"private": private, "dry_run": dry_run}
            if dry_run:
                said = f"would post {data['run_id']} to {here.settings.hub} ({data['environment']})"
            else:
                detail, new = posting.send(here, parcel, private=private, sign=sign, name=name)
                data |= {**detail.model_dump(mode="json", by_alias=True), "new": new}
                said = _lines(detail, new=new)
                here.output.note(detail.url)
            found.append((data, said))
    answer = found[0][0] if is_one else {"runs": [data for data, _ in found]}
    here.output.answer(answer, "\n".join(said for _, said in found))
    if not dry_run:
        manifests = [folder.manifest for folder in folders.values()]
        later = [
            f"wander runs publish {manifest.run_id}"
            if data["private"]
            else f"wander leaderboard {manifest.environment.full_name}"
            for manifest, (data, _) in zip(manifests, found, strict=True)
            if data["private"] or manifest.kind == "evaluation"
        ]
        here.output.next(*dict.fromkeys(later))


def _describe(folder: RunFolder, parcel: Parcel) -> dict[str, Any]:
    """Return what is sent of a run, and list its files."""
    from wander_client.hub.posting import files_of

    manifest, files = folder.manifest, files_of(folder.path)
    for path in files:
        current().output.note(f"  {path.stat().st_size:>12,}  {path.name}")
    return {
        "run_id": manifest.run_id,
        "environment": f"{manifest.environment.full_name}@{manifest.environment.version}",
        "files": [{"filename": path.name, "size": path.stat().st_size} for path in files],
        "rollouts": parcel.count,
        "sha256": parcel.sha256,
    }


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
