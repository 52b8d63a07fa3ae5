"""A token for a workflow that has none: it proves who it is, and the hub trusts it or does not."""

from __future__ import annotations

import httpx
from wander.wire.trusted_publishing import Audience, MintedToken, MintRequest

from wander_client.credentials import Credential
from wander_client.errors import ClientError, LoginRequired, NotFound
from wander_client.hub.api import HubApi

_HINT = "trust this workflow with `wander publisher add`, or set `WANDER_TOKEN`"


def workflow_credential(hub: str, *, transport: httpx.BaseTransport | None = None) -> Credential | None:
    """Return a token of fifteen minutes for the workflow that runs this; None where none does.

    Raises `LoginRequired` when the service gives no identity, or the hub does not trust it.
    """
    import id as identity

    api = HubApi(hub, transport=transport)
    try:
        try:
            audience = api.read("/_/oidc/audience", Audience).audience
        except NotFound:
            return None  # a hub without trusted publishing
        try:
            token = identity.detect_credential(audience)
        except identity.IdentityError as error:
            raise LoginRequired(f"this workflow has no identity to show: {error}", hint=_HINT) from error
        if token is None:
            return None
        try:
            minted = api.change("POST", "/_/oidc/mint-token", MintedToken, MintRequest(token=token))
        except ClientError as error:
            raise LoginRequired(str(error), hint=_HINT) from error
    finally:
        api.close()
    return Credential(minted.token, "the identity of this workflow")
