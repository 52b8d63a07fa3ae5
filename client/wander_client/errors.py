"""All errors of the command, with their exit statuses.

ClientError            1   the operation failed
|- UsageError          2   wrong arguments, or a prompt without a terminal
|- NotFound            3   no such environment, version, run, model or file
|- LoginRequired       4   no token, or the hub rejected it
|- Unavailable         5   network or server failure; retrying may help
|- NothingScored       6   every rollout failed; the rollouts are saved
'- Interrupted       130   Ctrl-C or SIGTERM; the message names the saved work

Partial success (6) is not an error: the command prints its result and returns `PARTIAL`.
Only `main` prints errors and chooses the exit status.
"""

from __future__ import annotations

from typing import ClassVar

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
LOGIN = 4
UNAVAILABLE = 5
PARTIAL = 6
INTERRUPTED = 130

EXIT_CODES: dict[int, str] = {
    OK: "ok",
    FAILED: "the operation failed: for example, a check found faults, or a reward is below --fail-under",
    USAGE: "wrong usage: unknown option, invalid value, or a prompt without a terminal",
    NOT_FOUND: "not found: environment, version, run, model or file",
    LOGIN: "login required, or the hub, endpoint or worker rejected the token",
    UNAVAILABLE: "network or server failure; retrying may help",
    PARTIAL: "partial: some or all rollouts failed; the results are saved",
    INTERRUPTED: "interrupted; the message names the saved work",
}


def name_option(keyword: str, value: object = None, *, word: str = "", command: str = "") -> str:
    """Return the name of an option for messages and hints, as `wander.errors.name_option` does."""
    from wander import errors  # late: most command lines are parsed without the SDK

    return errors.name_option(keyword, value, word=word, command=command)


class ClientError(Exception):
    """Base class of the command's errors: a message, a hint, a stable code and an exit status."""

    status: ClassVar[int] = FAILED
    default_code: ClassVar[str] = "failed"
    default_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        retryable: bool | None = None,
        detail: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code or self.default_code
        self.retryable = self.default_retryable if retryable is None else retryable
        self.detail = detail
        """Details that are printed between the error line and the hint."""
        self.request_id = request_id
        """ID of the request in the hub's log, or None if the hub was not involved."""


class UsageError(ClientError):
    """Wrong arguments, or a prompt without a terminal."""

    status: ClassVar[int] = USAGE
    default_code: ClassVar[str] = "usage"


class NotFound(ClientError):
    """No such environment, version, run, model or file."""

    status: ClassVar[int] = NOT_FOUND
    default_code: ClassVar[str] = "not_found"


class LoginRequired(ClientError):
    """No token, or the hub rejected it."""

    status: ClassVar[int] = LOGIN
    default_code: ClassVar[str] = "login_required"


class Unavailable(ClientError):
    """The network or the server failed. Retrying may help."""

    status: ClassVar[int] = UNAVAILABLE
    default_code: ClassVar[str] = "unavailable"
    default_retryable: ClassVar[bool] = True


class NothingScored(ClientError):
    """Every rollout failed, so the run lacks a result. The rollouts are saved."""

    status: ClassVar[int] = PARTIAL
    default_code: ClassVar[str] = "all_failed"


class Interrupted(ClientError):
    """Stopped by Ctrl-C or SIGTERM. The message names the saved work."""

    status: ClassVar[int] = INTERRUPTED
    default_code: ClassVar[str] = "interrupted"
