"""What one run of the command, or the calls of a program, share: output, settings, token.

`main` sets the command's, and commands read it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from wander_client.errors import ClientError
from wander_client.terminal.output import Mode, Output

if TYPE_CHECKING:
    import httpx

    from wander_client.credentials import Credential, CredentialStore
    from wander_client.hub.api import HubApi
    from wander_client.settings import Settings


@dataclass(frozen=True)
class CommonOptions:
    """Options that every command takes, at any place of the line."""

    mode: Mode | None = None
    color: str = "auto"
    progress: bool = True
    hub: str | None = None


class Invocation:
    """One run of the command."""

    def __init__(
        self,
        options: CommonOptions,
        output: Output,
        transport: httpx.BaseTransport | None = None,
        *,
        given: Credential | None = None,
    ) -> None:
        """`given` is a token that goes before the variable and the stored ones."""
        self.options = options
        self.output = output
        self._transport = transport
        self._given = given
        self._proven: Credential | None = None
        """What a workflow without a token got for its identity."""
        self._warned = False
        self.builds = False
        """Whether uv may build archives, which runs their authors' code with the user's rights."""

    @cached_property
    def settings(self) -> Settings:
        """The resolved settings."""
        from wander_client.settings import load_settings

        return load_settings(self.options.hub)

    @cached_property
    def credentials(self) -> CredentialStore:
        """The stored tokens."""
        from wander_client.credentials import CredentialStore

        store = CredentialStore(self.settings.config_dir, variable_hub=self.settings.token_hub)
        if store.too_open():
            self.output.warn(f"`{store.path}` is readable by others; run `chmod 600 {store.path}`")
        return store

    def hub(
        self, *, login: bool = False, publishes: tuple[str | None, str] | None = None
    ) -> AbstractContextManager[HubApi]:
        """Return the hub's API, to be used in a `with`; `login=True` fails early without a token.

        Who `publishes` something, by owner (None for the only one) and name, and has no token proves that it
        is a workflow, where it runs as one.
        """
        credential = self.credential(needed=login)
        if credential is None and publishes is not None:
            credential = self._proven = self.workflow_credential(*publishes)
            if credential is not None:
                self.output.note(f"publishing with {credential.origin}")
        return self._open(credential, login=login)

    def credential(self, *, needed: bool = False) -> Credential | None:
        """Return the token in use: a given one, else the variable's, else the stored one of this hub.

        A file of credentials that cannot be read is a warning, unless a token is `needed`.
        """
        found = self._given or self._stored_credential(needed=needed) or self._proven
        self._warn_of_token(found)
        return found

    def _stored_credential(self, *, needed: bool) -> Credential | None:
        try:
            return self.credentials.get(self.settings.hub)
        except ClientError as error:
            if needed or error.code != "bad_credentials":
                raise
            if str(error) not in self.output.warnings:
                self.output.warn(str(error))
            return None

    def _warn_of_token(self, credential: Credential | None) -> None:
        """Warn, once, if the token is for another hub, or travels where others can read it."""
        from urllib.parse import urlsplit

        from wander.wire.package_index import is_loopback

        hub = self.settings.hub
        if self._warned:
            return
        self._warned = True
        if self._given is None and self.credentials.withholds_variable(hub):
            self.output.warn(
                f"`WANDER_TOKEN` is for `{self.settings.token_hub}` and is not sent to `{hub}`; "
                f"set `WANDER_HUB={hub}` if it is for that one"
            )
        parts = urlsplit(hub)
        if credential is not None and parts.scheme == "http" and not is_loopback(parts.hostname):
            self.output.warn(
                f"your token travels to `{hub}` unencrypted, where others can read it: use https"
            )

    def _open(self, credential: Credential | None, *, login: bool) -> AbstractContextManager[HubApi]:
        from wander_client.hub.api import open_hub

        return open_hub(self.settings.hub, credential, login=login, transport=self._transport)

    def workflow_credential(self, owner: str | None = None, name: str | None = None) -> Credential | None:
        """Return a token of fifteen minutes for the workflow that runs this; None where none does.

        It is for publishing under `owner`, or the environment `name` alone, as far as they are given.

        Raises `LoginRequired` when it has no identity to show, or the hub does not trust it.
        """
        import id as identity
        from wander.wire.people import Audience, MintedToken, MintRequest

        from wander_client.credentials import Credential
        from wander_client.errors import ClientError, LoginRequired, NotFound
        from wander_client.hub.api import open_hub

        hint = "trust this workflow with `wander env publisher add`, or set `WANDER_TOKEN`"
        with open_hub(self.settings.hub, None, transport=self._transport) as hub:
            try:
                audience = hub.read("/_/oidc/audience", Audience).audience
            except NotFound:
                return None  # a hub without trusted publishing
            try:
                token = identity.detect_credential(audience)
            except identity.IdentityError as error:
                raise LoginRequired(f"this workflow has no identity to show: {error}", hint=hint) from error
            if token is None:
                return None
            try:
                asked, target = MintRequest(token=token), {"owner": owner, "name": name}
                params = {key: value for key, value in target.items() if value is not None}
                minted = hub.change("POST", "/_/oidc/mint-token", MintedToken, asked, params=params)
            except ClientError as error:
                raise LoginRequired(str(error), hint=hint) from error
        return Credential(minted.token, "the identity of this workflow")

    def hub_with(self, token: str) -> AbstractContextManager[HubApi]:
        """Return the hub's API for a token that is not stored yet."""
        from wander_client.credentials import Credential
        from wander_client.hub.api import open_hub

        credential = Credential(token, "login")
        self._warn_of_token(credential)
        return open_hub(self.settings.hub, credential, transport=self._transport)


_current: Invocation | None = None


def current() -> Invocation:
    """Return the running invocation."""
    if _current is None:
        raise RuntimeError("no command is running: commands are started by wander_client.main.main")
    return _current


def set_current(invocation: Invocation | None) -> None:
    """Make an invocation the running one (called by `main` alone)."""
    global _current
    _current = invocation


def may_build() -> bool:
    """Tell whether uv may build archives: only after the user said so."""
    return _current is not None and _current.builds
