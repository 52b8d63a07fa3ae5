"""`wander post`: put runs on the hub's leaderboards."""

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
        list[str] | None,
        Argument(help="folders or IDs of runs, or a suite's folder  [default: the newest run]"),
    ] = None,
    private: Annotated[
        bool,
        Option(
            "--private", help="visible only to you and to members of the environment; not on a leaderboard"
        ),
    ] = False,
    sign: Annotated[
        bool, Option("--sign", help="sign with this machine's key (`wander auth key new`)")
    ] = False,
    name: Annotated[str, Option(help="name of the run in lists and on leaderboards")] = "",
    incomplete: Annotated[
        bool, Option("--incomplete", help="post the run even if rollouts are missing")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="show what would be sent")] = False,
) -> None:
    """Post runs to the hub's leaderboards. Their manifests and rollouts become public.

    \b
    wander post runs/RUN --dry-run
    wander post runs/RUN
    wander post runs/RUN --private
    wander post runs/RUN --name "longer prompt"
    wander post runs/nightly                post all runs of a suite

    The hub recomputes all results from the rollouts. If the upload is interrupted, run the same command again
    to continue. Posting the same run twice changes nothing. If you post several runs and one of them cannot
    be posted, no run is sent.
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
        raise UsageError(
            "`--name` requires a single run", hint="post the runs one by one, or remove `--name`"
        )
    is_one = len(words) <= 1 and words == list(runs or ())
    posted: list[tuple[dict[str, Any], str]] = []
    with ExitStack() as stack:
        parcels = [
            (folder, stack.enter_context(posting.pack(here, folder, incomplete=incomplete)))
            for folder in folders.values()
        ]
        for folder, parcel in parcels:
            data = _describe(folder, parcel) | {"private": private, "dry_run": dry_run}
            if dry_run:
                text = f"would post {data['run_id']} to {here.settings.hub} ({data['environment']})"
            else:
                detail, new = posting.send(here, parcel, private=private, sign=sign, name=name)
                data |= {**detail.model_dump(mode="json", by_alias=True), "new": new}
                text = _lines(detail, new=new)
                here.output.note(detail.url)
            posted.append((data, text))
    answer = posted[0][0] if is_one else {"runs": [data for data, _ in posted]}
    here.output.answer(answer, "\n".join(text for _, text in posted))
    if not dry_run:
        manifests = [folder.manifest for folder in folders.values()]
        later = [
            f"wander runs publish {manifest.run_id}"
            if data["private"]
            else f"wander leaderboard {manifest.environment.full_name}"
            for manifest, (data, _) in zip(manifests, posted, strict=True)
            if data["private"] or manifest.kind == "evaluation"
        ]
        here.output.next(*dict.fromkeys(later))


def _describe(folder: RunFolder, parcel: Parcel) -> dict[str, Any]:
    """List the files of a run on stderr, and return what is sent."""
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
    # A training keeps only a few sample rollouts, so their mean reward is meaningless.
    reward = "" if detail.manifest.kind == "training" else f"  reward {interval(detail.summary)}"
    return (
        f"{'posted' if new else 'already posted'} {detail.run_id}{seen}{reward}\n"
        f"level   {detail.level}{why}\n"
        f"digest  sha256:{detail.sha256}"
        + (f"\nsigned  {detail.signature.fingerprint[:16]}" if detail.signature else "")
    )
