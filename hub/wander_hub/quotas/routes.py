"""The API of quotas."""

from __future__ import annotations

from wander.wire.people import NewQuota, OwnerQuota

from wander_hub.http.boundary import Caller, ForManager, HubSettings, ReadSession, audited
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter
from wander_hub.quotas import service

router = HubRouter(prefix="/api/v1/owners/{owner}/quota", tags=["accounts"])


@router.get("", responses=refusals(401, 403, 404, 422))
def show_quota(session: ReadSession, caller: Caller, settings: HubSettings, owner: str) -> OwnerQuota:
    """Return an owner's usage and limits. For its members."""
    return service.quota_of_owner(session, settings, caller, owner)


@router.put("", responses=refusals(400, 401, 403, 404, 422))
@audited("owner.quota")
def change_quota(context: ForManager, owner: str, body: NewQuota) -> OwnerQuota:
    """Set the limits of an owner, replacing all earlier ones. For administrators."""
    arguments = (context.settings, context.caller, owner, body)
    return context.commit(lambda session: service.change_quota(session, *arguments))
