"""Reads a posted run once, beside the requests: whose completions it has, and whether it agrees with what it
repeats.

No code of an environment runs here, so this needs no sandbox.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

from sqlalchemy.orm import Session
from wander.errors import RunError
from wander.evals.stats.agreement import agreement
from wander.types import Rollout, canonical_json
from wander.wire.verification import Agreement

from wander_hub.database import Database
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.jobs import JobContext, JobRefused
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run
from wander_hub.storage import Storage
from wander_hub.verification import evidence

TELLING = 1000
"""Letters and digits in distinct completions below which equal ones may well be a coincidence."""


class Examiner:
    """The handler of examination jobs."""

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Read a run; return what keeps what was found."""
        run_id = str(context.lease.payload["run_id"])
        try:
            with self._database.read(HUB) as session:
                run = runs.find(session, run_id)
                digest = completions_digest(self._rollouts(session, run, context))
                found = self._agreement(session, run, context)
        except HubProblem as problem:
            raise JobRefused(problem.detail) from problem
        return lambda session: evidence.keep_examination(session, run_id, digest, found)

    def _agreement(self, session: Session, run: Run, context: JobContext) -> Agreement | None:
        """Compare a run with the one that it repeats, where that can be done."""
        manifest = runs.manifest_of(run)
        original = evidence.original_of(session, run, manifest)
        if original is None:
            return None
        try:
            return agreement(
                runs.manifest_of(original),
                self._rollouts(session, original, context),
                manifest,
                self._rollouts(session, run, context),
            )
        except RunError:
            return None  # they share no example

    def _rollouts(self, session: Session, run: Run, context: JobContext) -> Iterator[Rollout]:
        for block in runs.rollout_lines(session, self._storage, run):
            context.check()
            for line in block.splitlines():
                yield Rollout.model_validate_json(line)


def completions_digest(rollouts: Iterable[Rollout]) -> str | None:
    """Return a digest of all completions of a run, None where they are too short to tell runs apart.

    Only letters and digits count, so that a space more or another case makes no other run of it. Neither
    model, rewards, times nor token counts do: those are what whoever copies a run changes.
    """
    whole = hashlib.sha256()
    seen: set[bytes] = set()
    telling = 0
    for rollout in rollouts:
        whole.update(canonical_json([rollout.example_id, rollout.index]).encode())
        for turn in rollout.turns:
            said = canonical_json([turn.message.get("content"), turn.message.get("tool_calls")])
            letters = "".join(each for each in said.casefold() if each.isalnum()).encode()
            digest = hashlib.sha256(letters).digest()
            whole.update(digest)
            if digest not in seen and telling < TELLING:
                seen.add(digest)
                telling += len(letters)
    return whole.hexdigest() if telling >= TELLING else None
