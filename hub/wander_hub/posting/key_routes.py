"""The API of keys for signing runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from starlette.responses import Response
from wander.wire.postings import KeyInfo, KeyList, NewKey

from wander_hub.http.boundary import Caller, ForManager, ReadSession, audited
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter
from wander_hub.runs import signing

router = HubRouter(prefix="/api/v1", tags=["runs"])


@router.get("/keys", responses=refusals(401))
def list_keys(session: ReadSession, caller: Caller) -> KeyList:
    """List your keys for signing runs."""
    return signing.keys_of(session, caller.user_id)


@router.post(
    "/keys",
    response_model=KeyInfo,
    status_code=201,
    responses={
        200: {"model": KeyInfo, "description": "The key was registered before"},
        **refusals(400, 401, 403, 409, 422),
    },
)
@audited("key.add")
def add_key(context: ForManager, body: NewKey) -> Response:
    """Register a public key for signing runs."""
    key, created = context.commit(lambda session: signing.add_key(session, body, context.caller))
    return Response(key.model_dump_json(), 201 if created else 200, media_type="application/json")


@router.delete("/keys/{fingerprint}", responses=refusals(401, 403, 404, 422))
@audited("key.revoke")
def revoke_key(
    context: ForManager, fingerprint: Annotated[str, Path(min_length=6, max_length=64)]
) -> KeyInfo:
    """Revoke a key. It can no longer sign runs, and earlier runs show that their key was revoked."""
    return context.commit(lambda session: signing.revoke_key(session, fingerprint, context.caller))
