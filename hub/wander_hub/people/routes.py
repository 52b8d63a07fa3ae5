"""The API of a user's own account, and of all users for administrators."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
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
    OrganizationInfo,
    OrganizationList,
    OwnerInfo,
    OwnerList,
    Password,
    RecoveryCodes,
    SecondFactorState,
    UserLink,
    UserList,
)

from wander_hub import audit
from wander_hub.accounts import service as accounts
from wander_hub.accounts.models import User
from wander_hub.accounts.repository import user_named
from wander_hub.database import fill
from wander_hub.http import cookies
from wander_hub.http.boundary import Caller, Context, ForManager, ReadSession, audited
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter
from wander_hub.names import normalize_owner
from wander_hub.people import departures, identities, organizations, second_factor, sessions, sign_in
from wander_hub.rights import rights
from wander_hub.rights.rights import Administrator, ForAdministrator

router = HubRouter(prefix="/api/v1", tags=["accounts"])

_REFUSALS = refusals(400, 401, 403, 422, 429)
_FACTOR = refusals(400, 401, 403, 409, 422, 429)
_CHANGES = refusals(401, 403, 404, 409, 422)
_LINKS = _CHANGES | refusals(400)
UserName = Annotated[str, Path(max_length=80)]
Cursor = Annotated[str, Query(max_length=80, description="value of `next` in the previous page")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Word = Annotated[str, Query(max_length=80, description="list only users whose names contain this")]


@router.put("/account/password", status_code=204, responses=_REFUSALS)
@audited("user.password")
def change_password(context: ForManager, body: NewPassword, answer: Response) -> None:
    """Change your password. This signs you out of all other browsers."""
    rights.require_whole_token(context.caller)
    _renew(context, answer, sign_in.change_password(context, body.old, body.new, body.code))


@router.get("/account/second-factor", responses=refusals(401))
def show_second_factor(session: ReadSession, caller: Caller) -> SecondFactorState:
    """Report whether you have a second factor."""
    return second_factor.second_factor_of(session, caller.user_id)


@router.post("/account/second-factor", responses=_FACTOR)
@audited("user.second_factor.begin")
def begin_second_factor(context: ForManager, body: Password) -> NewSecondFactor:
    """Create a secret for an authenticator app (TOTP). It is required after you confirm it with a code."""
    return second_factor.begin_second_factor(context, body.password)


@router.put("/account/second-factor", responses=_FACTOR)
@audited("user.second_factor.on")
def confirm_second_factor(context: ForManager, body: FactorCode, answer: Response) -> RecoveryCodes:
    """Turn on the second factor with a code. Returns ten recovery codes and signs you out of all other
    browsers."""
    codes, cookie = second_factor.confirm_second_factor(context, body.code)
    _renew(context, answer, cookie)
    return codes


@router.post("/account/second-factor/off", status_code=204, responses=_FACTOR)
@audited("user.second_factor.off")
def end_second_factor(context: ForManager, body: FactorCode) -> None:
    """Turn off the second factor, with a code of the app or a recovery code."""
    second_factor.turn_off(context, body.code)


@router.delete("/account/sessions", status_code=204, responses=_REFUSALS)
@audited("user.sign_out")
def sign_out_everywhere(context: ForManager) -> None:
    """Sign out of all browsers, including this one."""
    rights.require_whole_token(context.caller)

    def end(session: Session) -> None:
        audit.about(session, target=context.caller.user)
        sessions.end_sessions(session, context.caller.user_id)

    context.commit(end)


@router.get("/owners", responses=refusals(401, 403))
def list_owners(session: ReadSession, caller: Caller) -> OwnerList:
    """List the owners that you have a role on."""
    return OwnerList(data=organizations.list_owners_of_caller(session, caller))


@router.post("/owners", status_code=201, responses=_CHANGES | refusals(400))
@audited("owner.create")
def make_organization(context: ForManager, body: NewOwner) -> OwnerInfo:
    """Create an organization, an owner without a user of its name. You become its first owner."""
    arguments = (context.caller, context.settings, body.name)
    return context.commit(lambda session: organizations.make_organization(session, *arguments))


@router.delete("/organizations/{organization}", status_code=204, responses=_CHANGES)
@audited("owner.remove")
def remove_organization(context: ForManager, organization: Annotated[str, Path(max_length=80)]) -> None:
    """Remove an organization's roles, invitations, tokens and trusted publishers. Its name and content
    remain."""
    context.commit(
        lambda session: organizations.remove_own_organization(session, context.caller, organization)
    )


@router.get("/organizations", responses=refusals(401, 403, 422))
def list_organizations(
    session: ReadSession, _caller: Administrator, cursor: Cursor = "", limit: Limit = 100
) -> OrganizationList:
    """List the organizations. For administrators."""
    page = [
        OrganizationInfo(name=owner.name, owners=owners, created_at=owner.created_at)
        for owner, owners in organizations.with_owners(session, after=cursor, limit=limit + 1).items()
    ]
    return OrganizationList(data=page[:limit], next=page[limit - 1].name if len(page) > limit else None)


@router.get("/users", responses=refusals(401, 403, 422))
def list_users(
    session: ReadSession, _caller: Administrator, cursor: Cursor = "", limit: Limit = 100, q: Word = ""
) -> UserList:
    """List the users. For administrators."""
    page = departures.list_users(session, after=cursor, limit=limit + 1, word=q.strip())
    return UserList(data=page[:limit], next=page[limit - 1].name if len(page) > limit else None)


@router.post("/users", status_code=201, responses=_CHANGES | refusals(400))
@audited("user.add")
def add_user(context: ForAdministrator, body: NewUser) -> UserLink:
    """Add a user; returns a link for choosing a password. For administrators."""

    def add(session: Session) -> UserLink:
        user = accounts.add_user(session, body.name)
        audit.about(session, owner=user.name, target=user.name)
        return _link(context, session, user)

    return context.commit(add)


@router.post("/users/{user}/link", responses=_CHANGES)
@audited("user.link")
def give_link(context: ForAdministrator, user: UserName) -> UserLink:
    """Create a link that lets a user choose a new password, once, within a week. For administrators."""
    return context.commit(lambda session: _link(context, session, _lock_other(context, session, user)))


@router.delete("/users/{user}/second-factor", status_code=204, responses=_CHANGES)
@audited("user.second_factor.remove")
def remove_second_factor(context: ForAdministrator, user: UserName) -> None:
    """Remove the second factor of a user who lost the phone and the recovery codes. For administrators."""
    context.commit(
        lambda session: second_factor.remove_second_factor(session, _lock_other(context, session, user).id)
    )


@router.get("/users/{user}/identities", responses=refusals(401, 403, 404, 422))
def list_identities(session: ReadSession, _caller: Administrator, user: UserName) -> IdentityList:
    """List a user's identities at sign-in providers. For administrators."""
    known = user_named(session, normalize_owner(user))
    if known is None:
        raise departures.no_user(user)
    return IdentityList(
        data=[fill(IdentityInfo, identity) for identity in identities.list_identities(session, known.id)]
    )


@router.post("/users/{user}/identities", status_code=204, responses=_LINKS)
@audited("user.identity.link")
def link_identity(context: ForAdministrator, user: UserName, body: NewIdentity) -> None:
    """Let a user sign in with an identity of a provider. For administrators."""
    issuer = body.issuer or _own_issuer(context)

    def link(session: Session) -> None:
        identities.link_identity(session, issuer, body.subject, _lock_other(context, session, user).id)

    context.commit(link)


@router.delete("/users/{user}/identities", status_code=204, responses=_CHANGES)
@audited("user.identity.unlink")
def unlink_identity(
    context: ForAdministrator,
    user: UserName,
    subject: Annotated[str, Query(max_length=255)],
    issuer: Annotated[str | None, Query(max_length=300, description="default: the hub's provider")] = None,
) -> None:
    """Remove a linked identity and end the user's sessions. For administrators."""
    issuer_url = issuer or _own_issuer(context)

    def unlink(session: Session) -> None:
        identities.unlink_identity(session, issuer_url, subject, _lock_other(context, session, user))

    context.commit(unlink)


@router.put("/users/{user}/disabled", responses=_CHANGES)
@audited("user.disable")
def disable_user(context: ForAdministrator, user: UserName) -> ChangedUser:
    """Disable a user and revoke all their tokens, sessions and codes. For administrators."""
    return context.commit(lambda session: departures.disable_user(session, user))


@router.delete("/users/{user}/disabled", responses=_CHANGES)
@audited("user.enable")
def enable_user(context: ForAdministrator, user: UserName) -> ChangedUser:
    """Enable a disabled user with their previous roles. They need new tokens. For administrators."""
    return context.commit(lambda session: departures.enable_user(session, user))


@router.delete("/users/{user}", responses=_CHANGES)
@audited("user.remove")
def remove_user(context: ForAdministrator, user: UserName) -> ChangedUser:
    """Remove a user permanently. Their name and what they published remain. For administrators."""
    return context.commit(lambda session: departures.remove_user(session, user))


def _renew(context: Context, answer: Response, cookie: str | None) -> None:
    """Set the cookie of the new session that replaces the user's ended sessions."""
    if cookie is not None:
        cookies.write_cookie(answer, context.base_url, cookie, int(context.settings.session_hours * 3600))


def _lock_other(context: Context, session: Session, name: str) -> User:
    """Return a user who is not another administrator, so that a stolen token cannot take over an
    administrator."""
    user = departures.lock_user(session, name)
    if user.admin and user.id != context.caller.user_id:
        hint = f"the hub's operator can run `wander-hub user password {user.name} --link`"
        raise HubProblem(403, "administrator", f"`{user.name}` is another administrator", hint=hint)
    audit.about(session, target=user.name)
    return user


def _link(context: Context, session: Session, user: User) -> UserLink:
    """Return a user with a new link for choosing a password; it is valid once, for a week, and replaces older
    links."""
    code = sign_in.make_code(session, user)
    return UserLink(user=departures.info_of(session, user), link=sign_in.link_of(code, context.base_url))


def _own_issuer(context: Context) -> str:
    """Return the issuer of the hub's own provider."""
    provider = context.settings.sign_in_provider
    if provider is None:
        hint = "pass `issuer`, or set `WANDER_HUB_SIGN_IN_PROVIDER`"
        raise HubProblem(422, "no_provider", "this hub has no sign-in provider", hint=hint)
    return provider.issuer
