"""The API on how much an owner may have."""

from __future__ import annotations

from wander.wire.people import NewQuota, OwnerQuota

from wander_hub.http.boundary import Caller, ForManager, HubSettings, ReadSession, audited
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter
from wander_hub.quotas import service

router = HubRouter(prefix="/api/v1/owners/{owner}/quota", tags=["accounts"])


@router.get("", responses=refusals(401, 403, 404, 422))
def show_quota(session: ReadSession, caller: Caller, settings: HubSettings, owner: str) -> OwnerQuota:
    """Tell how much an owner has and may have; for its members."""
    return service.quota_of_owner(session, settings, caller, owner)


@router.put("", responses=refusals(400, 401, 403, 404, 422))
@audited("owner.quota")
def change_quota(context: ForManager, owner: str, body: NewQuota) -> OwnerQuota:
    """Give an owner limits of its own, in place of all that it had; for administrators."""
    what = (context.settings, context.caller, owner, body)
    return context.commit(lambda session: service.change_quota(session, *what))
