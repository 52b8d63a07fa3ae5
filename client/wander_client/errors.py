"""Every error the command raises, and the exit status each one ends with.

ClientError            1   the thing asked about failed
|- UsageError          2   wrong arguments; a prompt that nobody can answer
|- NotFound            3   no such environment, version, run, model or file
|- LoginRequired       4   no token, or the hub refused it
|- Unavailable         5   network or server; a retry may help
|- NothingScored       6   every rollout failed; they are kept
'- Interrupted       130   Ctrl-C or SIGTERM; says what was kept

Partial success (6) is no error: the command prints its answer and returns `PARTIAL`.
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
    FAILED: "the thing asked about failed: a check found faults, a score is below --fail-under",
    USAGE: "wrong usage: unknown option, bad value, a question that nobody can answer here",
    NOT_FOUND: "not found: environment, version, run, model or file",
    LOGIN: "login needed, or the hub, endpoint or worker refused the token",
    UNAVAILABLE: "network or server trouble; a retry may help",
    PARTIAL: "partial: some or all rollouts failed, the results are kept",
    INTERRUPTED: "interrupted; what was kept is printed",
}


def name_option(keyword: str, value: object = None, *, word: str = "", command: str = "") -> str:
    """Return the name of an option for messages and hints, as `wander.errors.name_option` does."""
    from wander import errors  # late: most commands load no SDK to be read

    return errors.name_option(keyword, value, word=word, command=command)


class ClientError(Exception):
    """Base of the command's errors: a message, what to do next, a stable code, an exit status."""

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
        """Evidence printed between the error line and the hint."""
        self.request_id = request_id
        """What the hub calls the request, in its log too; None where the hub was not asked."""


class UsageError(ClientError):
    """The arguments are wrong, or nobody can answer a prompt."""

    status: ClassVar[int] = USAGE
    default_code: ClassVar[str] = "usage"


class NotFound(ClientError):
    """No such environment, version, run, model or file."""

    status: ClassVar[int] = NOT_FOUND
    default_code: ClassVar[str] = "not_found"


class LoginRequired(ClientError):
    """No token, or the hub refused it."""

    status: ClassVar[int] = LOGIN
    default_code: ClassVar[str] = "login_required"


class Unavailable(ClientError):
    """The network or the server failed; a retry may help."""

    status: ClassVar[int] = UNAVAILABLE
    default_code: ClassVar[str] = "unavailable"
    default_retryable: ClassVar[bool] = True


class NothingScored(ClientError):
    """Every rollout failed, so there is no answer; what was played is kept."""

    status: ClassVar[int] = PARTIAL
    default_code: ClassVar[str] = "all_failed"


class Interrupted(ClientError):
    """Stopped by Ctrl-C or SIGTERM; the message says what was kept."""

    status: ClassVar[int] = INTERRUPTED
    default_code: ClassVar[str] = "interrupted"
