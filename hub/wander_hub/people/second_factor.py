"""The second factor: codes of an authenticator app (TOTP, RFC 6238), and recovery codes as a fallback."""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

from sqlalchemy.orm import Session
from wander.wire.people import NewSecondFactor, RecoveryCodes, SecondFactorState

from wander_hub import audit
from wander_hub.accounts.models import User
from wander_hub.database import now
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.people import attempts, passwords, sessions
from wander_hub.people.models import SecondFactor
from wander_hub.rights import rights
from wander_hub.security import token_hash

_RECOVERY_CODES = 10
_RECOVERY_BYTES = 10
_CLOCKS_DIFFER = 1
"""Allowed difference between the clocks of phone and hub, in steps of 30 seconds."""


def second_factor_of(session: Session, user_id: int) -> SecondFactorState:
    """Return whether a user has a second factor."""
    row = _confirmed(session, user_id)
    return SecondFactorState(on=row is not None, recovery_codes=len(row.recovery) if row is not None else 0)


def begin_second_factor(context: Context, password: str) -> NewSecondFactor:
    """Create and return a new secret; it is required after the user confirmed it with a code."""
    from pyotp import TOTP, random_base32

    rights.require_whole_token(context.caller)
    caller, secret = context.caller, random_base32()
    with context.read() as session:
        stored_hash = session.get_one(User, caller.user_id).password_hash
    if stored_hash is None:
        hint = "the hub's operator can run `wander-hub user password NAME --link` so that you can choose one"
        raise HubProblem(409, "no_password", "a second factor requires a password", hint=hint)
    attempts.count_attempt(context.database, caller.user, _address(context))
    if not passwords.verify_password(password, stored_hash):
        raise HubProblem(403, "wrong_password", "the password is wrong")

    def keep(session: Session) -> None:
        session.get_one(User, caller.user_id, with_for_update=True)
        if _confirmed(session, caller.user_id) is not None:
            hint = "turn it off first, with a code: `POST /api/v1/account/second-factor/off`"
            raise HubProblem(409, "second_factor_on", "your account already has a second factor", hint=hint)
        remove_second_factor(session, caller.user_id)
        session.flush()
        session.add(SecondFactor(user_id=caller.user_id, secret=secret, last_step=0, recovery=[]))
        attempts.forget_failures(session, caller.user, _address(context))
        audit.about(session, target=caller.user)

    context.commit(keep)
    issuer = f"Wander {urlsplit(context.base_url).hostname}"
    uri = TOTP(secret).provisioning_uri(name=caller.user, issuer_name=issuer)
    return NewSecondFactor(secret=secret, uri=uri)


def confirm_second_factor(context: Context, code: str) -> tuple[RecoveryCodes, str | None]:
    """Turn on the second factor; return its recovery codes, which cannot be shown again, and a cookie.

    The caller's sessions end. The cookie belongs to a new session, if the caller uses a browser.
    """
    rights.require_whole_token(context.caller)
    caller = context.caller
    codes = [secrets.token_hex(_RECOVERY_BYTES) for _ in range(_RECOVERY_CODES)]
    attempts.count_guess(context.database, caller.user_id)

    def turn_on(session: Session) -> str | None:
        user = session.get_one(User, caller.user_id, with_for_update=True)
        row = session.get(SecondFactor, caller.user_id)
        if row is None or row.confirmed_at is not None:
            hint = "start with `POST /api/v1/account/second-factor`"
            raise HubProblem(409, "nothing_to_confirm", "no second factor is waiting for a code", hint=hint)
        if not _spend(row, code):
            raise _wrong()
        row.confirmed_at, row.recovery = now(), [token_hash(recovery_code) for recovery_code in codes]
        attempts.forget_guesses(session, caller.user_id)
        audit.about(session, target=caller.user)
        return sessions.renew_session(session, user, caller, context.settings)

    cookie = context.commit(turn_on)
    return RecoveryCodes(data=codes), cookie


def turn_off(context: Context, code: str) -> None:
    """Turn off the caller's second factor."""
    rights.require_whole_token(context.caller)
    caller = context.caller
    attempts.count_guess(context.database, caller.user_id)

    def end(session: Session) -> None:
        session.get_one(User, caller.user_id, with_for_update=True)
        require_code(session, caller.user_id, code)
        remove_second_factor(session, caller.user_id)
        audit.about(session, target=caller.user)

    context.commit(end)


def remove_second_factor(session: Session, user_id: int) -> None:
    """Delete the second factor of a user, if there is one."""
    if (row := session.get(SecondFactor, user_id)) is not None:
        session.delete(row)


def code_fits(session: Session, user_id: int, code: str) -> bool:
    """Return whether a code is valid, without using it up; without a second factor, every code is valid."""
    row = _confirmed(session, user_id)
    return row is None or _step(row, code) is not None or _digest(row, code) != ""


def spend_code(session: Session, user_id: int, code: str) -> bool:
    """Use up a code and return whether it is valid; without a second factor, every code is. The user is
    locked."""
    row = _confirmed(session, user_id)
    if row is not None and not _spend(row, code):
        return False
    attempts.forget_guesses(session, user_id)
    return True


def require_code(session: Session, user_id: int, code: str) -> None:
    """Use up a code; raise a 403 problem if it is wrong."""
    if not spend_code(session, user_id, code):
        raise _wrong()


def _confirmed(session: Session, user_id: int) -> SecondFactor | None:
    row = session.get(SecondFactor, user_id, populate_existing=True)
    return row if row is not None and row.confirmed_at is not None else None


def _wrong() -> HubProblem:
    hint = "send the `code` that your app shows now, or a recovery code; each code works once"
    return HubProblem(403, "wrong_code", "the code of the second factor is missing or wrong", hint=hint)


def _spend(row: SecondFactor, code: str) -> bool:
    """Accept a code once; it and older codes are rejected afterwards."""
    if (step := _step(row, code)) is not None:
        row.last_step = step
        return True
    if digest := _digest(row, code):
        row.recovery = [unused for unused in row.recovery if unused != digest]
        return True
    return False


def _step(row: SecondFactor, code: str) -> int | None:
    """Return the time step of a code if it is later than the last used step, otherwise None."""
    from pyotp import TOTP
    from pyotp.exceptions import OTPVerificationError

    try:
        step = TOTP(row.secret).verify_and_get_timecode(
            code.replace(" ", ""), for_time=now().timestamp(), valid_window=_CLOCKS_DIFFER
        )
    except OTPVerificationError:
        return None
    return step if step > row.last_step else None


def _digest(row: SecondFactor, code: str) -> str:
    """Return the hash of a recovery code if it is unused, otherwise an empty string."""
    digest = token_hash(code.strip().lower())
    return digest if digest in row.recovery else ""


def _address(context: Context) -> str:
    return (context.origin and context.origin.address) or ""
