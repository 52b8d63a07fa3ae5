"""The administrator's token that a start of the hub hands out: the first one, or a new one when asked."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from sqlalchemy.orm import Session

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
    """Give the reader a token of the administrator on an empty hub, and on any other when `new` is true.

    It goes into the file (mode 0600), or to standard output, and is kept by nobody else. What happened is
    told on standard error, also when nothing did and a file was asked for; a first start tells how to sign
    in with a browser, to a hub of that `data` folder.
    """

    def make(session: Session) -> tuple[str | None, bool]:
        secret = first_administrator(session)
        first = secret is not None
        if secret is None and new:
            user = user_named(session, ADMINISTRATOR)
            if user is None:
                hint = "make one with `wander-hub token create USER`; `wander-hub user list` names the users"
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
        sys.stderr.write(f"`{command}` gives the administrator a password, for the browser\n")
    said = "added the administrator" if first else "made a new token for the administrator"
    if token_file is not None:
        sys.stderr.write(f"{said} `{ADMINISTRATOR}`; the token is in `{token_file}`\n")
        return
    sys.stderr.write(f"{said} `{ADMINISTRATOR}`; this token is shown once:\n")
    sys.stdout.write(secret + "\n")
    sys.stdout.flush()


def _explain_no_token(database: Database, token_file: Path) -> str:
    """Say that no token was written, and whether the one in the file will do."""
    try:
        given = token_file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        given = ""
    with database.read() as session:
        known = token_hashed(session, token_hash(given)) if well_formed(given) else None
    if known is not None and known.revoked_at is None:
        return f"the token in `{token_file}` is one of this hub; none was made\n"
    state = "holds none of this hub" if given else "was not written"
    return (
        f"warning: the hub has its administrator already, and `{token_file}` {state}\n\n"
        "hint: start it with `--new-token` for a new one, or run `wander-hub token create admin`\n"
    )


def _write_secret(path: Path, secret: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secret + "\n")
    temporary.replace(path)
