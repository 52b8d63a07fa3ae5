"""The administrator's token that the hub prints at its first start, or on request."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from sqlalchemy.orm import Session
from wander.system.plain_files import require_replaceable

from wander_hub.accounts.repository import user_named
from wander_hub.database import Database
from wander_hub.http.problems import HubProblem
from wander_hub.rights.repository import token_hashed
from wander_hub.rights.tokens import add_token, first_administrator
from wander_hub.security import token_hash, well_formed

ADMINISTRATOR = "admin"


def hand_out_token(
    database: Database, token_file: Path | None, *, new: bool, data: Path | None = None
) -> None:
    """Create a token of the administrator on an empty hub, or on any hub if `new` is true.

    The token is written to the file (mode 0600) or to standard output, and stored nowhere else. Standard
    error reports the result, even if a file was requested but no token was created. A first start also prints
    how to sign in with a browser, with the option for the `data` folder.
    """

    def make(session: Session) -> tuple[str | None, bool]:
        secret = first_administrator(session)
        first = secret is not None
        if secret is None and new:
            user = user_named(session, ADMINISTRATOR)
            if user is None:
                hint = "run `wander-hub token create USER`; `wander-hub user list` lists the users"
                raise HubProblem(404, "user_not_found", f"there is no user `{ADMINISTRATOR}`", hint=hint)
            secret = add_token(session, user, "start of the hub")
        if secret is not None and token_file is not None:
            _write_secret(token_file, secret)
        return secret, first

    secret, first = database.commit(make)
    if secret is None:
        if token_file is not None:
            sys.stderr.write(_explain_no_token(database, token_file))
        return
    if first:
        option = f" --data {shlex.quote(str(data))}" if data else ""
        command = f"wander-hub user password {ADMINISTRATOR}{option}"
        sys.stderr.write(f"run `{command}` to set the administrator's password for the browser\n")
    outcome = "added the administrator" if first else "created a new token for the administrator"
    if token_file is not None:
        sys.stderr.write(f"{outcome} `{ADMINISTRATOR}`; the token is in `{token_file}`\n")
        return
    sys.stderr.write(f"{outcome} `{ADMINISTRATOR}`; this token is shown only once:\n")
    sys.stdout.write(secret + "\n")
    sys.stdout.flush()


def _explain_no_token(database: Database, token_file: Path) -> str:
    """Explain that no token was written, and whether the token in the file is still valid."""
    try:
        stored = token_file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        stored = ""
    with database.read() as session:
        known = token_hashed(session, token_hash(stored)) if well_formed(stored) else None
    if known is not None and known.revoked_at is None:
        return f"the token in `{token_file}` is valid for this hub; no new token was created\n"
    state = "has no token of this hub" if stored else "was not written"
    return (
        f"warning: the hub has its administrator already, and `{token_file}` {state}\n\n"
        "hint: start the hub with `--new-token`, or run `wander-hub token create admin`\n"
    )


def _write_secret(path: Path, secret: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    require_replaceable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secret + "\n")
    temporary.replace(path)
