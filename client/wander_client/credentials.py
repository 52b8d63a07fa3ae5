"""API tokens: `WANDER_TOKEN`, or one token per hub in `credentials.json` in the config folder (mode 0600).

`WANDER_TOKEN` belongs to one hub: the hub of `WANDER_HUB`, or the hub that is used by default. A hub that
`--hub` names gets only the token that is stored for it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wander_client.errors import ClientError, LoginRequired

FILE_NAME = "credentials.json"
TOKEN_VARIABLE = "WANDER_TOKEN"  # noqa: S105 - the variable's name, not a secret


@dataclass(frozen=True)
class Credential:
    """A token and its origin, such as a file name."""

    token: str
    origin: str

    def __repr__(self) -> str:
        return f"Credential(token='...', origin={self.origin!r})"


class CredentialStore:
    """The file of stored tokens. Never prints a token."""

    def __init__(
        self, config_dir: Path, environ: Mapping[str, str] | None = None, *, variable_hub: str | None = None
    ) -> None:
        """`variable_hub` is the hub that `WANDER_TOKEN` belongs to."""
        self.path = config_dir / FILE_NAME
        self.variable_hub = variable_hub
        self._environ = os.environ if environ is None else environ

    def get(self, hub: str) -> Credential | None:
        """Return the token for a hub. The variable overrides the file, and must not be empty."""
        token = self._environ.get(TOKEN_VARIABLE) if hub == self.variable_hub else None
        if token is not None and not token.strip():
            hint = f"set it to a token (in CI, check the secret), or run `unset {TOKEN_VARIABLE}`"
            raise LoginRequired(f"`{TOKEN_VARIABLE}` is empty", hint=hint)
        if token is not None:
            return Credential(token.strip(), TOKEN_VARIABLE)
        stored = self._read().get(hub)
        return Credential(stored, str(self.path)) if stored else None

    def withholds_variable(self, hub: str) -> bool:
        """Return whether `WANDER_TOKEN` is set, but belongs to another hub."""
        return hub != self.variable_hub and bool(self._environ.get(TOKEN_VARIABLE, "").strip())

    def set(self, hub: str, token: str) -> None:
        """Store the token of a hub."""
        self._write({**self._read(), hub: token})

    def remove(self, hub: str) -> bool:
        """Remove the token of a hub. Returns False if no token was stored."""
        tokens = self._read()
        if tokens.pop(hub, None) is None:
            return False
        self._write(tokens)
        return True

    def hubs(self) -> list[str]:
        """Return the hubs with a stored token."""
        return sorted(self._read())

    def too_open(self) -> bool:
        """Return whether other users of the machine can read the file."""
        try:
            return bool(stat.S_IMODE(self.path.stat().st_mode) & 0o077)
        except OSError:
            return False

    def _read(self) -> dict[str, str]:
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            tokens = stored["tokens"]
            return {str(hub): str(token) for hub, token in tokens.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ClientError(
                f"cannot read the credentials file `{self.path}`",
                hint="remove it and run `wander login`",
                code="bad_credentials",
            ) from error

    def _write(self, tokens: dict[str, str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp creates the file with mode 0600 before anything is written.
        import tempfile

        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".credentials-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"tokens": tokens}, file, indent=1)
            os.replace(name, self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
