"""The API on one's own account, and for administrators on everybody's."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy.orm import Session
from starlette.responses import Response
from wander.wire.people import (
    ChangedUser,
    FactorCode,
    IdentityInfo,
    IdentityList,
    NewIdentity,
    NewOwner,
    NewPassword,
    NewSecondFactor,
    NewUser,
    OrganisationInfo,
    OrganisationList,
    OwnerInfo,
    OwnerList,
    Password,
    RecoveryCodes,
    SecondFactorState,
    UserLink,
    UserList,
)

from wander_hub import audit
from wander_hub.database import fill
from wander_hub.http import cookies
from wander_hub.http.boundary import Caller, Context, ForManager, ReadSession, audited
from wander_hub.http.problems import refusals
from wander_hub.people import administration, departures, organisations, second_factor, sessions, sign_in
from wander_hub.rights import rights

router = APIRouter(prefix="/api/v1", tags=["accounts"])

_REFUSALS = refusals(400, 401, 403, 422, 429)
_FACTOR = refusals(400, 401, 403, 409, 422, 429)
_CHANGES = refusals(401, 403, 404, 409, 422)
_LINKS = _CHANGES | refusals(400)
User = Annotated[str, Path(max_length=80)]
Cursor = Annotated[str, Query(max_length=80, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Word = Annotated[str, Query(max_length=80, description="those whose names have it")]


@router.put("/account/password", status_code=204, responses=_REFUSALS, response_class=Response)
@audited("user.password")
def change_password(context: ForManager, body: NewPassword) -> Response:
    """Choose another password; you are signed out in all other browsers."""
    rights.whole_token(context.caller)
    answer = Response(status_code=204)
    _renew(context, answer, sign_in.change_password(context, body.old, body.new, body.code))
    return answer


@router.get("/account/second-factor", response_model=SecondFactorState, responses=refusals(401))
def show_second_factor(session: ReadSession, caller: Caller) -> SecondFactorState:
    """Tell whether you sign in with a second factor."""
    return second_factor.state_of(session, caller.user_id)


@router.post("/account/second-factor", response_model=NewSecondFactor, responses=_FACTOR)
@audited("user.second_factor.begin")
def begin_second_factor(context: ForManager, body: Password) -> NewSecondFactor:
    """Make a secret for an authenticator app (TOTP); it is asked for once you confirmed it with a code."""
    return second_factor.begin(context, body.password)


@router.put("/account/second-factor", response_model=RecoveryCodes, responses=_FACTOR)
@audited("user.second_factor.on")
def confirm_second_factor(context: ForManager, body: FactorCode, answer: Response) -> RecoveryCodes:
    """Turn it on with a code; you get ten recovery codes, and are signed out in all other browsers."""
    codes, cookie = second_factor.confirm(context, body.code)
    _renew(context, answer, cookie)
    return codes


@router.post("/account/second-factor/off", status_code=204, responses=_FACTOR, response_class=Response)
@audited("user.second_factor.off")
def end_second_factor(context: ForManager, body: FactorCode) -> Response:
    """Turn it off, with a code or a recovery code."""
    second_factor.turn_off(context, body.code)
    return Response(status_code=204)


@router.delete("/account/sessions", status_code=204, responses=_REFUSALS, response_class=Response)
@audited("user.sign_out")
def sign_out_everywhere(context: ForManager) -> Response:
    """Sign out in all browsers, this one included."""
    rights.whole_token(context.caller)

    def end(session: Session) -> None:
        audit.about(session, target=context.caller.user)
        sessions.end_all(session, context.caller.user_id)

    context.commit(end)
    return Response(status_code=204)


@router.get("/owners", response_model=OwnerList, responses=refusals(401, 403))
def list_owners(session: ReadSession, caller: Caller) -> OwnerList:
    """List the owners on which you have a role."""
    return OwnerList(data=organisations.of_caller(session, caller))


@router.post("/owners", status_code=201, response_model=OwnerInfo, responses=_CHANGES | refusals(400))
@audited("owner.create")
def make_organisation(context: ForManager, body: NewOwner) -> OwnerInfo:
    """Make an organisation, an owner without a user of its name; you are its first owner."""
    what = (context.caller, context.settings, body.name)
    return context.commit(lambda session: organisations.make(session, *what))


@router.delete("/organisations/{organisation}", status_code=204, responses=_CHANGES, response_class=Response)
@audited("owner.remove")
def remove_organisation(context: ForManager, organisation: Annotated[str, Path(max_length=80)]) -> Response:
    """End roles, invitations, tokens and trust of an organisation. What it published stays, and its name."""
    context.commit(lambda session: organisations.remove_own(session, context.caller, organisation))
    return Response(status_code=204)


@router.get("/organisations", response_model=OrganisationList, responses=refusals(401, 403, 422))
def list_organisations(
    session: ReadSession, caller: Caller, cursor: Cursor = "", limit: Limit = 100
) -> OrganisationList:
    """List the organisations; for administrators."""
    rights.administrator(caller)
    found = [
        OrganisationInfo(name=one.name, owners=owners, created_at=one.created_at)
        for one, owners in organisations.with_owners(session, after=cursor, limit=limit + 1).items()
    ]
    return OrganisationList(data=found[:limit], next=found[limit - 1].name if len(found) > limit else None)


@router.get("/users", response_model=UserList, responses=refusals(401, 403, 422))
def list_users(
    session: ReadSession, caller: Caller, cursor: Cursor = "", limit: Limit = 100, q: Word = ""
) -> UserList:
    """List the users; for administrators."""
    rights.administrator(caller)
    found = departures.list_users(session, after=cursor, limit=limit + 1, word=q.strip())
    return UserList(data=found[:limit], next=found[limit - 1].name if len(found) > limit else None)


@router.post("/users", status_code=201, response_model=UserLink, responses=_CHANGES | refusals(400))
@audited("user.add")
def add_user(context: ForManager, body: NewUser) -> UserLink:
    """Add a user, and get the link by which they choose a password. For administrators."""
    return administration.add(context, body.name)


@router.post("/users/{user}/link", response_model=UserLink, responses=_CHANGES)
@audited("user.link")
def give_link(context: ForManager, user: User) -> UserLink:
    """Get a link by which a user chooses another password, once, within a week. For administrators."""
    return administration.give_link(context, user)


@router.delete("/users/{user}/second-factor", status_code=204, responses=_CHANGES, response_class=Response)
@audited("user.second_factor.remove")
def remove_second_factor(context: ForManager, user: User) -> Response:
    """Let somebody in who lost phone and recovery codes. For administrators."""
    administration.remove_second_factor(context, user)
    return Response(status_code=204)


@router.get("/users/{user}/identities", response_model=IdentityList, responses=refusals(401, 403, 404, 422))
def list_identities(session: ReadSession, caller: Caller, user: User) -> IdentityList:
    """List as whom a user signs in at a provider. For administrators."""
    found = administration.identities_of(session, caller, user)
    return IdentityList(data=[fill(IdentityInfo, one) for one in found])


@router.post("/users/{user}/identities", status_code=204, responses=_LINKS, response_class=Response)
@audited("user.identity.link")
def link_identity(context: ForManager, user: User, body: NewIdentity) -> Response:
    """Let a user sign in as a subject of a provider. For administrators."""
    administration.link_identity(context, user, body.issuer, body.subject)
    return Response(status_code=204)


@router.delete("/users/{user}/identities", status_code=204, responses=_CHANGES, response_class=Response)
@audited("user.identity.unlink")
def unlink_identity(
    context: ForManager,
    user: User,
    subject: Annotated[str, Query(max_length=255)],
    issuer: Annotated[str | None, Query(max_length=300, description="unset: the hub's provider")] = None,
) -> Response:
    """Let a user sign in so no more; their sessions end. For administrators."""
    administration.unlink_identity(context, user, issuer, subject)
    return Response(status_code=204)


@router.put("/users/{user}/disabled", response_model=ChangedUser, responses=_CHANGES)
@audited("user.disable")
def disable_user(context: ForManager, user: User) -> ChangedUser:
    """Let a user in no more: tokens, sessions and codes end at once. For administrators."""
    return _change(context, departures.disable, user)


@router.delete("/users/{user}/disabled", response_model=ChangedUser, responses=_CHANGES)
@audited("user.enable")
def enable_user(context: ForManager, user: User) -> ChangedUser:
    """Let a disabled user in again, with the roles of before and new tokens. For administrators."""
    return _change(context, departures.enable, user)


@router.delete("/users/{user}", response_model=ChangedUser, responses=_CHANGES)
@audited("user.remove")
def remove_user(context: ForManager, user: User) -> ChangedUser:
    """Remove a user for good; what they published stays, and so does the name. For administrators."""
    return _change(context, departures.remove, user)


def _renew(context: Context, answer: Response, cookie: str | None) -> None:
    """Give a browser the cookie of the session that goes on after all of its user's ended."""
    if cookie is not None:
        cookies.write(answer, context.base_url, cookie, int(context.settings.session_hours * 3600))


def _change(context: Context, change: departures.Change, user: str) -> ChangedUser:
    rights.administrator(context.caller)
    return context.commit(lambda session: change(session, user))
