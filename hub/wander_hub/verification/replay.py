"""The work of a verification: `wander replay`, as any stranger would run it."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from pydantic import ValidationError
from sqlalchemy.orm import Session
from wander.wire.verification import ReplayReport, VerifiedWith

from wander_hub.jobs import JobContext, JobRefused
from wander_hub.verification import service
from wander_hub.verification.program import ClientProgram


class Replayer:
    """The handler of replay jobs."""

    def __init__(self, program: ClientProgram) -> None:
        self._program = program

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Play a run again; return what keeps the report."""
        payload = context.lease.payload
        words = ["replay", str(payload["run_id"]), "--stream"]
        words += ["--level", str(payload.get("level", "highest"))]
        if payload.get("sample") is not None:
            # Drawn now and stored with the report alone: nobody can know before which rollouts are looked at.
            words += ["--sample", str(payload["sample"]), "--seed", str(secrets.randbits(62))]
        data = self._program.run(context, words)
        try:
            found = data.pop("made_with")
            made_with = VerifiedWith.model_validate(found) if found is not None else None
            data.pop("level")
            report = ReplayReport.model_validate(data)
        except (ValidationError, KeyError) as error:
            raise JobRefused(f"`wander replay` answered with no report: {error}") from error
        return lambda session: service.keep(session, context.lease.job_id, report, made_with)
