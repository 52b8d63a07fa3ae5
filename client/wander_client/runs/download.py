"""Fetch a posted run as a run folder."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.errors import Unavailable

if TYPE_CHECKING:
    from wander.wire import RunDetail

    from wander_client.context import Invocation

RUNS = "posted-runs"
"""Folder in the cache that holds the runs: a posted run never changes."""


def download_run(context: Invocation, posted: RunDetail) -> Path:
    """Return the folder of a posted run, downloaded unless the cache has it.

    The folder holds the manifest and the rollouts, and no record of a command: it stays somebody else's run.
    Raises `ClientError` if the hub sends other rollouts than it states.
    """
    from wander.evals.stats.summary import summarise_run
    from wander.evals.store.folder import RunFolder

    # Each hub has its own copies, so that no hub decides what a run of another one is.
    stated = "\n".join([context.settings.hub, posted.sha256, str(posted.rollouts_sha256)])
    digest = hashlib.sha256(stated.encode()).hexdigest()[:16]
    folder = context.settings.cache_dir / RUNS / f"{posted.run_id}-{digest}"
    if (folder / "run.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=f".{posted.run_id}-", dir=folder.parent) as work,
        context.output.progress("downloading", posted.summary.rollouts, unit="rollouts") as bar,
        context.hub() as hub,
    ):
        run = RunFolder.create(Path(work) / "run", posted.manifest)
        try:
            count = 0
            for count, rollout in enumerate(hub.rollouts(posted.run_id, posted.rollouts_sha256), start=1):
                run.append(rollout)
                bar.update(count)
            if count != posted.summary.rollouts:
                sent = f"the hub sent {count:,} of {posted.summary.rollouts:,} rollouts of `{posted.run_id}`"
                raise Unavailable(sent, hint="try again in a moment")
            if posted.manifest.ended_at is not None:
                summary = summarise_run(run.manifest, run.rollouts_in_order())
                run.finish(summary, ended_at=posted.manifest.ended_at)
        finally:
            run.close()
        shutil.rmtree(folder, ignore_errors=True)  # of a download that was cut short
        (Path(work) / "run").rename(folder)
    return folder
