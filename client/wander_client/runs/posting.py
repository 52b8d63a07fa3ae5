"""Post a run from this machine: pack it, check it for secrets and send it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from wander_client.environments.location import require_published
from wander_client.errors import ClientError, name_option
from wander_client.hub import posting
from wander_client.hub.local_paths import local_arguments
from wander_client.names import parse_run_name

if TYPE_CHECKING:
    from wander.evals.store.folder import RunFolder
    from wander.wire import RunDetail

    from wander_client.context import Invocation
    from wander_client.hub.posting import Parcel

_CLOCKS_APART = timedelta(hours=1)
"""Smallest difference between two clocks that causes a warning."""


@contextmanager
def pack(context: Invocation, folder: RunFolder, *, incomplete: bool = False) -> Iterator[Parcel]:
    """Pack a run for the hub.

    Raises `ClientError` for a run that must not be posted: its environment was not published, it lacks
    rollouts (allowed with `incomplete`), or it contains a token of this machine.
    """
    manifest = folder.manifest
    if manifest.shard is not None:
        raise ClientError(
            f"`{folder.path}` is shard {manifest.shard} of a run; only whole runs can be posted",
            hint="merge all shards with `wander runs merge FOLDERS... --out RUN`, then post the merged run",
            code="shard_alone",
        )
    require_published(
        manifest.environment,
        hint="publish it with `wander publish`, then evaluate it by its name: `wander eval OWNER/NAME`",
        run=manifest.run_id,
    )
    with posting.pack_run(manifest, posting.files_of(folder.path)) as parcel:
        missing = manifest.expected_rollouts - parcel.count
        if missing > 0 and manifest.kind == "evaluation" and not incomplete:
            raise ClientError(
                f"{missing} of {manifest.expected_rollouts} rollouts are missing, "
                "and a posted run never changes",
                hint="complete it with "
                + name_option("resume", str(folder.path), command="wander eval")
                + ", or post it unchanged with "
                + name_option("incomplete", True),
                code="incomplete_run",
            )
        _refuse_secrets(context, folder)
        for name in local_arguments(manifest.environment.arguments):
            context.output.warn(
                f"the environment's argument `{name}` is a path on this machine: it is posted unchanged, and "
                "the run cannot be replayed elsewhere"
            )
        yield parcel


def send(
    context: Invocation, parcel: Parcel, *, private: bool, sign: bool, name: str = ""
) -> tuple[RunDetail, bool]:
    """Send a run; return it and whether it is new to the hub.

    `sign` signs it with this machine's key; `name` is its name on the hub. Warns if the run was posted before
    with other options.
    """
    from wander_client.hub.signing_keys import read_key

    name = parse_run_name(name).name
    signer = read_key(context.settings.config_dir).sign if sign else None
    with (
        context.hub(login=True) as hub,
        context.output.progress("posting", sum(file.size for file in parcel.files)) as bar,
    ):
        detail, new = posting.post(
            hub,
            parcel,
            private=private,
            name=name,
            signer=signer,
            told=lambda done, total: bar.update(done),
            trouble=context.output.note,
        )
    if new:
        _compare_clocks(context, detail)
    if private and not detail.private:
        context.output.warn("this run was already posted publicly; `wander runs withdraw` removes it")
    if name and detail.name != name:
        context.output.warn(
            f"this run was already posted {f'as `{detail.name}`' if detail.name else 'without a name'}; "
            f"`wander runs rename {detail.run_id} NAME` renames it"
        )
    if sign and detail.signature is None:
        context.output.warn("this run was already posted without a signature")
    return detail, new


def _compare_clocks(context: Invocation, posted: RunDetail) -> None:
    """Warn if the hub's clock differs from that of this machine, or of the machine that played the run."""
    here, hub = datetime.fromtimestamp(time.time(), UTC), posted.posted_at
    began = posted.manifest.started_at
    if abs(here - hub) > _CLOCKS_APART:
        wrong = f"the clock of this machine shows {here:%Y-%m-%d %H:%M} UTC"
    elif began - hub > _CLOCKS_APART:
        wrong = f"the run started at {began:%Y-%m-%d %H:%M} UTC, according to the machine that played it"
    else:
        return
    context.output.warn(f"{wrong}, but the hub's time is {hub:%Y-%m-%d %H:%M} UTC: correct the clock")


def _refuse_secrets(context: Invocation, folder: RunFolder) -> None:
    """Raise `ClientError` if a run contains a key or token of this machine: a tool may have printed it."""
    from wander.evals.store.jsonl import blocks

    from wander_client.packages.building.leaks import secret_variables

    credential = context.credential()
    secrets = secret_variables()
    if credential is not None:
        secrets["the token of your hub"] = credential.token
    wanted = {what: value.encode() for what, value in secrets.items()}
    longest = max(map(len, wanted.values()), default=0)
    for path in posting.files_of(folder.path):
        rest = b""
        for block in blocks(path):
            for what, value in wanted.items():
                if value in rest + block:
                    raise ClientError(
                        f"`{path.name}` contains {what}",
                        hint="revoke that secret; this run must not be posted",
                        code="secret_found",
                    )
            rest = (rest + block)[-longest:]
