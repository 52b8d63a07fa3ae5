"""Posted runs in the formats of other tools, made while they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from sqlalchemy.orm import Session
from starlette.responses import Response, StreamingResponse
from wander.evals.formats.atif import trajectory
from wander.evals.formats.eval_results import entry, results_file
from wander.evals.formats.exported_run import json_line
from wander.evals.formats.inspect_log import write_log
from wander.evals.store.jsonl import split_lines
from wander.types import Rollout
from wander.wire import RunManifest, RunSummary

from wander_hub.http.problems import HubProblem
from wander_hub.runs import service
from wander_hub.runs.models import Run
from wander_hub.storage import Storage

ExportFormat = Literal["atif", "eval-results", "inspect"]
MOST_EXPORTED = 20_000
"""Maximum number of rollouts in an export. A log of as many takes about 10 s of a processor."""

_ENDINGS = {"atif": ".atif.jsonl", "eval-results": ".yaml", "inspect": ".eval"}
_TYPES = {"atif": "application/jsonl", "eval-results": "application/yaml", "inspect": "application/zip"}


class _PostedRun:
    """A run in the hub's storage."""

    def __init__(self, session: Session, storage: Storage, run: Run) -> None:
        self.manifest = RunManifest.model_validate_json(run.manifest)
        self.summary = RunSummary.model_validate(run.summary)
        self._blocks = service.rollout_lines(session, storage, run)

    def rollouts(self) -> Iterator[Rollout]:
        """Yield every rollout. May be called once."""
        for line in split_lines(self._blocks):
            yield Rollout.model_validate_json(line)


def export(session: Session, storage: Storage, run: Run, kind: ExportFormat, base_url: str) -> Response:
    """Return the run in another tool's format. Raises a 422 problem if it is too large or has no result."""
    if service.count_of(run) > MOST_EXPORTED:
        raise HubProblem(
            422,
            "run_too_large",
            f"the run has more than {MOST_EXPORTED:,} rollouts",
            hint=f"use `wander runs export {run.run_id} --format {kind}`",
        )
    posted = _PostedRun(session, storage, run)
    headers = {"Content-Disposition": f'attachment; filename="{run.run_id}{_ENDINGS[kind]}"'}
    if kind == "eval-results":
        if posted.summary.reward_mean is None:
            raise HubProblem(422, "no_result", "no rollout of the run was scored")
        result = entry(posted.manifest, posted.summary, f"{base_url}/runs/{run.run_id}")
        return Response(results_file([result]), headers=headers, media_type=_TYPES[kind])
    content = _trajectories(posted) if kind == "atif" else _log(posted)
    return StreamingResponse(content, headers=headers, media_type=_TYPES[kind])


def _trajectories(run: _PostedRun) -> Iterator[bytes]:
    for rollout in run.rollouts():
        yield json_line(trajectory(run.manifest, rollout))


def _log(run: _PostedRun) -> Iterator[bytes]:
    out = _Outlet()
    for _ in write_log(run, out):
        yield out.taken()
    yield out.taken()


class _Outlet:
    """A file in memory, from which a response takes the bytes while they are written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing, because the response sends the parts."""

    def close(self) -> None:
        """Do nothing."""

    def taken(self) -> bytes:
        """Return the bytes that were written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
