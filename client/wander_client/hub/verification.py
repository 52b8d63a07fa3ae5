"""Have the hub replay a posted run, and watch its progress."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from wander.wire.verification import VerificationInfo

from wander_client.errors import ClientError, NotFound
from wander_client.hub.api import HubApi


def watch_verification(hub: HubApi, verification: VerificationInfo) -> Iterator[VerificationInfo]:
    """Yield the state of a verification from time to time, until it has ended."""
    pause = 0.25
    while verification.state in ("queued", "running"):
        time.sleep(pause)
        pause = min(5.0, pause * 1.25)
        verification = hub.verification(verification.id)
        yield verification


@contextlib.contextmanager
def require_posted(run_id: str, given: str) -> Iterator[None]:
    """Explain that a run must be posted if the hub does not know it.

    `given` is the user's name for the run.
    """
    try:
        yield
    except NotFound as error:
        if error.code != "run_not_found":
            raise
        raise NotFound(
            f"the hub has no run `{run_id}`: it was not posted",
            hint=f"run `wander post {given}` to post it",
            code="run_not_found",
            request_id=error.request_id,
        ) from error


def require_played(verification: VerificationInfo) -> None:
    """Raise `ClientError` if a verification ended without a report."""
    if verification.state in ("failed", "canceled"):
        raise ClientError(
            f"the hub could not replay `{verification.run_id}`: {verification.error or 'it was canceled'}",
            hint=f"run `wander runs replay {verification.run_id}` to replay it on this machine",
            code="verification_failed",
        )
