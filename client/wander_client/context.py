"""State of a command or of calls from Python: output, settings and token.

`main` sets the state of the command, and commands read it with `current()`.
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
    """Options that every command has, anywhere on the command line."""

    mode: Mode | None = None
    color: str = "auto"
    progress: bool = True
    hub: str | None = None


class Invocation:
    """State of one command."""

    def __init__(
        self,
        options: CommonOptions,
        output: Output,
        transport: httpx.BaseTransport | None = None,
        *,
        given: Credential | None = None,
    ) -> None:
        """`given` is a token that overrides the variable and the stored tokens."""
        self.options = options
        self.output = output
        self._transport = transport
        self._given = given
        self._exchanged: Credential | None = None
        """The token that a workflow got in exchange for its identity."""
        self._warned = False
        self.builds = False
        """Whether uv may build sdists, which runs their authors' code with the user's permissions."""

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
            self.output.warn(f"`{store.path}` can be read by other users; run `chmod 600 {store.path}`")
        return store

    def hub(
        self, *, login: bool = False, publishes: tuple[str | None, str] | None = None
    ) -> AbstractContextManager[HubApi]:
        """Open the hub's API as a context manager. `login=True` raises an error early without a token.

        `publishes` is the owner (None if there is only one) and the name of what is published. Without a
        token in a CI workflow, the workflow's identity is exchanged for a token.
        """
        credential = self.credential(needed=login)
        if credential is None and publishes is not None:
            credential = self._exchanged = self.workflow_credential(*publishes)
            if credential is not None:
                self.output.note(f"publishing with {credential.origin}")
        return self._open(credential, login=login)

    def credential(self, *, needed: bool = False) -> Credential | None:
        """Return the token: a given token, else that of the variable, else the stored token of this hub.

        If the credentials file cannot be read, this is a warning, or an error if a token is `needed`.
        """
        credential = self._given or self._stored_credential(needed=needed) or self._exchanged
        self._warn_of_token(credential)
        return credential

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
        """Warn, once, if the token belongs to another hub or is sent unencrypted."""
        from urllib.parse import urlsplit

        from wander.wire.package_index import is_loopback

        hub = self.settings.hub
        if self._warned:
            return
        self._warned = True
        if self._given is None and self.credentials.withholds_variable(hub):
            self.output.warn(
                f"`WANDER_TOKEN` is for `{self.settings.token_hub}` and is not sent to `{hub}`; "
                f"if it is for that hub, set `WANDER_HUB={hub}`"
            )
        parts = urlsplit(hub)
        if credential is not None and parts.scheme == "http" and not is_loopback(parts.hostname):
            self.output.warn(f"your token is sent to `{hub}` unencrypted; use https")

    def _open(self, credential: Credential | None, *, login: bool) -> AbstractContextManager[HubApi]:
        from wander_client.hub.api import open_hub

        return open_hub(self.settings.hub, credential, login=login, transport=self._transport)

    def workflow_credential(self, owner: str | None = None, name: str | None = None) -> Credential | None:
        """Return a 15-minute token for the CI workflow that runs this, or None outside of a workflow.

        The token is for publishing under `owner`, or for the environment `name`, if they are given.
        Raises `LoginRequired` if the workflow has no identity or the hub does not trust it.
        """
        import id as identity
        from wander.wire.people import Audience, MintedToken, MintRequest

        from wander_client.credentials import Credential
        from wander_client.errors import ClientError, LoginRequired, NotFound
        from wander_client.hub.api import open_hub

        hint = "add it as a trusted publisher on the owner's settings page, or set `WANDER_TOKEN`"
        with open_hub(self.settings.hub, None, transport=self._transport) as hub:
            try:
                audience = hub.read("/_/oidc/audience", Audience).audience
            except NotFound:
                return None  # a hub without trusted publishing
            try:
                token = identity.detect_credential(audience)
            except identity.IdentityError as error:
                raise LoginRequired(f"this workflow cannot prove its identity: {error}", hint=hint) from error
            if token is None:
                return None
            try:
                request, target = MintRequest(token=token), {"owner": owner, "name": name}
                params = {key: value for key, value in target.items() if value is not None}
                minted = hub.change("POST", "/_/oidc/mint-token", MintedToken, request, params=params)
            except ClientError as error:
                raise LoginRequired(str(error), hint=hint) from error
        return Credential(minted.token, "the identity of this workflow")

    def hub_with(self, token: str) -> AbstractContextManager[HubApi]:
        """Open the hub's API with a token that is not stored yet."""
        from wander_client.credentials import Credential
        from wander_client.hub.api import open_hub

        credential = Credential(token, "login")
        self._warn_of_token(credential)
        return open_hub(self.settings.hub, credential, transport=self._transport)


_current: Invocation | None = None


def current() -> Invocation:
    """Return the state of the running command."""
    if _current is None:
        raise RuntimeError("no command is running; start commands with wander_client.main.main")
    return _current


def set_current(invocation: Invocation | None) -> None:
    """Set the state of the running command. Only `main` calls this."""
    global _current
    _current = invocation


def may_build() -> bool:
    """Return whether uv may build packages, which the user must allow."""
    return _current is not None and _current.builds
