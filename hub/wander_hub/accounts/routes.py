"""`GET /api/v1/whoami`."""

from __future__ import annotations

from fastapi import APIRouter
from wander.wire import Whoami

from wander_hub.boundary import Caller
from wander_hub.problems import documented

router = APIRouter(prefix="/api/v1", tags=["accounts"])


@router.get("/whoami", response_model=Whoami, responses=documented(401))
def whoami(caller: Caller) -> Whoami:
    """Tell whose token this is and what it may publish under."""
    return Whoami(user=caller.user, admin=caller.admin, owners=list(caller.owners), token=caller.token)
