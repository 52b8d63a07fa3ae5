"""`wander post`: put a run on the hub's leaderboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from wander_client.context import current
from wander_client.errors import ClientError

if TYPE_CHECKING:
    from wander.evals.store.folder import RunFolder
    from wander.wire import RunDetail

    from wander_client.hub.posting import Parcel


def post(
    run: Annotated[str | None, typer.Argument(help="folder, run id, or nothing for the newest run")] = None,
    private: Annotated[
        bool,
        typer.Option(
            "--private", help="visible only to you and those with a role on the environment; on no board"
        ),
    ] = False,
    sign: Annotated[
        bool, typer.Option("--sign", help="sign with this machine's key (`wander key new`)")
    ] = False,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="post even though rollouts are missing")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be sent")] = False,
) -> None:
    """Put a run on the hub's leaderboard: its manifest and every rollout, for all to read.

    \b
    wander post runs/RUN --dry-run
    wander post runs/RUN
    wander post runs/RUN --private

    The hub derives every number again from the rollouts. Rollouts go in chunks: when the network or a machine
    fails, the same command goes on where it stopped. Posting the same run twice changes nothing.
    """
    from wander_client.environments.location import require_published
    from wander_client.evaluate.evaluation import resume_command
    from wander_client.hub import posting
    from wander_client.runs.lookup import run_folder

    here = current()
    folder = run_folder(here, run)
    manifest = folder.manifest
    name = require_published(
        manifest.environment,
        hint="publish it with `wander publish`, then evaluate it by its name: `wander eval OWNER/NAME`",
    )
    files = posting.files_of(folder.path)
    with posting.pack_run(manifest, files) as parcel:
        missing = manifest.expected_rollouts - parcel.count
        if missing > 0 and manifest.kind == "evaluation" and not incomplete:
            mend, expected = f"complete it with `{resume_command(folder.path)}`", manifest.expected_rollouts
            raise ClientError(
                f"{missing} of {expected} rollouts are missing, and a posted run never changes",
                hint=f"{mend}, or post it as it is with `--incomplete`",
                code="incomplete_run",
            )
        _refuse_secrets(folder)
        for path in files:
            here.output.note(f"  {path.stat().st_size:>12,}  {path.name}")
        data: dict[str, Any] = {
            "run_id": manifest.run_id,
            "environment": str(name),
            "files": [{"filename": path.name, "size": path.stat().st_size} for path in files],
            "rollouts": parcel.count,
            "sha256": parcel.sha256,
            "private": private,
            "dry_run": dry_run,
        }
        if dry_run:
            here.output.answer(data, f"would post {manifest.run_id} to {here.settings.hub} ({name})")
            return
        detail, new = _send(parcel, private=private, sign=sign)
    if private and not detail.private:
        here.output.warn("this run was already posted publicly; `wander runs withdraw` removes it")
    if sign and detail.signature is None:
        here.output.warn("this run was already posted without a signature")
    data |= {**detail.model_dump(mode="json", by_alias=True), "new": new}
    here.output.answer(data, _lines(detail, new=new))
    here.output.note(detail.url)
    if detail.private:
        here.output.next(f"wander runs publish {manifest.run_id}")
    elif manifest.kind == "evaluation":
        here.output.next(f"wander leaderboard {name.owner}/{name.name}")


def _send(parcel: Parcel, *, private: bool, sign: bool) -> tuple[RunDetail, bool]:
    from wander_client.hub import posting
    from wander_client.hub.signing_keys import read_key

    here = current()
    signer = read_key(here.settings.config_dir).sign if sign else None
    with here.hub(login=True) as hub, here.output.progress("posting", parcel.count) as bar:
        return posting.post(
            hub,
            parcel,
            private=private,
            signer=signer,
            progress=bar.update,
            trouble=here.output.note,
        )


def _refuse_secrets(folder: RunFolder) -> None:
    """Refuse to publish this machine's own tokens, should a tool have printed one."""
    import os

    from wander.evals.store.jsonl import blocks

    here = current()
    credential = here.credentials.get(here.settings.hub)
    secrets = {name: os.environ.get(name, "") for name in ("OPENAI_API_KEY", "HF_TOKEN", "WANDER_TOKEN")}
    secrets["the stored hub token"] = credential.token if credential else ""
    wanted = {name: value.encode() for name, value in secrets.items() if len(value) >= 12}
    rest = b""
    for path in (folder.path / "run.json", *folder.path.glob("rollouts.jsonl*")):
        for block in blocks(path):
            for name, value in wanted.items():
                if value in rest + block:
                    raise ClientError(
                        f"`{path.name}` holds the value of {name}",
                        hint="revoke that secret; this run must not be posted",
                        code="secret_found",
                    )
            rest = block[-256:]


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
