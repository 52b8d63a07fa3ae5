"""The API of trusted publishers, and the two addresses that twine, uv and pdm use on the host of an
upload."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from wander.wire.people import (
    Audience,
    MintedToken,
    MintRequest,
    NewPublisher,
    PublisherInfo,
    PublisherList,
)

from wander_hub import audit
from wander_hub.http.boundary import (
    ByBody,
    Caller,
    ForManager,
    HubDatabase,
    HubSettings,
    Number,
    ReadSession,
    audited,
    origin_of,
)
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter
from wander_hub.publishers import service
from wander_hub.publishers.identity_tokens import IdentityTokens

router = HubRouter(tags=["trusted publishing"])

_REFUSALS = refusals(308, 400, 401, 403, 404, 409, 410, 422)
_PUBLISHERS = "/api/v1/owners/{owner}/publishers"


@router.get(_PUBLISHERS, responses=refusals(401, 403, 404, 422))
def list_publishers(session: ReadSession, caller: Caller, owner: str) -> PublisherList:
    """List the workflows that may publish for an owner."""
    return PublisherList(data=service.publishers_of(session, caller, owner))


@router.post(_PUBLISHERS, status_code=201, responses=_REFUSALS)
@audited("publisher.add")
def add_publisher(context: ForManager, owner: str, body: NewPublisher) -> PublisherInfo:
    """Trust a workflow to publish one environment, which may not exist yet, or all environments of an
    owner."""
    arguments = (context.caller, owner, body, context.settings.oidc_issuers)
    return context.commit(lambda session: service.add_publisher(session, *arguments))


@router.delete(_PUBLISHERS + "/{publisher}", responses=_REFUSALS)
@audited("publisher.remove")
def remove_publisher(context: ForManager, owner: str, publisher: Number) -> PublisherInfo:
    """Stop trusting a workflow."""
    return context.commit(lambda session: service.remove_publisher(session, context.caller, owner, publisher))


@router.get("/_/oidc/audience", responses=refusals(404))
def audience(settings: HubSettings) -> Audience:
    """Return the required audience of identity tokens."""
    return Audience(audience=_audience(settings.audience))


def identity_tokens(request: Request, settings: HubSettings) -> IdentityTokens:
    """Return the application's verifier of identity tokens, which caches the issuers' keys."""
    state = request.app.state
    if getattr(state, "identity_tokens", None) is None:
        state.identity_tokens = IdentityTokens(settings.oidc_issuers, _audience(settings.audience))
    verifier: IdentityTokens = state.identity_tokens
    return verifier


@router.post("/_/oidc/mint-token", responses=refusals(400, 404, 422, 503), dependencies=[Depends(ByBody())])
@audited("token.mint")
async def mint_token(
    request: Request,
    database: HubDatabase,
    settings: HubSettings,
    tokens: Annotated[IdentityTokens, Depends(identity_tokens)],
    body: MintRequest,
    owner: Annotated[str | None, Query(max_length=39, description="owner of the environment")] = None,
    name: Annotated[str | None, Query(max_length=200, description="name of the environment")] = None,
) -> MintedToken:
    """Exchange the identity token of a trusted workflow for an API token that is valid for 15 minutes.

    Without a target, as in uv and twine, the API token is valid at the address of every owner that trusts the
    workflow.
    """
    claims = await tokens.claims(body.token)  # may send a request to the issuer
    kind = settings.oidc_issuers[claims["iss"]]
    work = audit.recorded(
        lambda session: service.mint_token(session, kind, claims, owner, name), origin_of(request, None)
    )
    return await run_in_threadpool(database.commit, work)


def _audience(known: str | None) -> str:
    if known is None:
        hint = "the hub's operator can set `WANDER_HUB_PUBLIC_URL`"
        raise HubProblem(
            404, "trusted_publishing_off", "trusted publishing is disabled on this hub", hint=hint
        )
    return known
