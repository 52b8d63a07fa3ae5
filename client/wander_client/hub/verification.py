"""Have the hub replay a posted run, and watch its progress."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wander.wire.verification import VerificationInfo

from wander_client.errors import ClientError, NotFound
from wander_client.hub.api import HubApi
from wander_client.hub.waiting import watch


def watch_verification(hub: HubApi, verification: VerificationInfo) -> Iterator[VerificationInfo]:
    """Yield the state of a verification from time to time, until it has ended."""
    return watch(
        verification,
        lambda state: hub.verification(state.id),
        lambda state: state.state in ("queued", "running"),
    )


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
