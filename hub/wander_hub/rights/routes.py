"""The API of callers, their tokens, roles and invitations."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Depends, Path, Request
from sqlalchemy.orm import Session
from wander.wire import TokenInfo
from wander.wire.changes import CreatedToken, MemberList, NewRole, NewToken, OwnerSettings, TokenList, Whoami
from wander.wire.people import InvitationInfo, InvitationList, LeakedToken, LeakReceipt

from wander_hub import audit
from wander_hub.http.boundary import (
    ByBody,
    Caller,
    ForManager,
    HubDatabase,
    Number,
    ReadSession,
    audited,
    origin_of,
)
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter
from wander_hub.rights import invitations, members, rights
from wander_hub.rights import tokens as token_service
from wander_hub.security import well_formed

router = HubRouter(prefix="/api/v1", tags=["accounts"])

_REFUSALS = refusals(308, 400, 401, 403, 404, 409, 410, 422)
_OWNER = "/owners/{owner}"
_ENVIRONMENT = "/environments/{owner}/{name}"
User = Annotated[str, Path(max_length=80)]
_ANSWER_REFUSALS = refusals(401, 403, 404, 409, 422)


@router.get("/whoami", responses=refusals(401))
def whoami(caller: Caller) -> Whoami:
    """Return the token's user, and the owners under which the token may publish."""
    return Whoami(user=caller.user, admin=caller.admin, owners=list(caller.owners), token=caller.token)


@router.post("/tokens", status_code=201, responses=_REFUSALS)
@audited("token.create")
def create_token(context: ForManager, body: NewToken) -> CreatedToken:
    """Create a token for yourself. Its secret is only in this response and cannot be shown again."""
    return context.commit(lambda session: members.new_token(session, context.caller, body))


@router.get("/tokens", responses=refusals(401, 403))
def list_tokens(session: ReadSession, caller: Caller) -> TokenList:
    """List your tokens without their secrets."""
    return TokenList(data=members.list_tokens(session, caller))


@router.delete("/tokens/{prefix}", responses=_REFUSALS)
@audited("token.revoke")
def revoke_token(context: ForManager, prefix: Annotated[str, Path(max_length=40)]) -> TokenInfo:
    """Revoke one of your tokens immediately."""
    return context.commit(lambda session: members.revoke_own_token(session, context.caller, prefix))


@router.post("/leaks", status_code=202, responses=refusals(400, 422), dependencies=[Depends(ByBody())])
@audited("token.leak")
def report_leaks(
    request: Request, database: HubDatabase, body: Annotated[list[LeakedToken], Body(max_length=100)]
) -> LeakReceipt:
    """Report tokens that were found in public. Valid ones are revoked immediately.

    No authentication is required, because anyone who has a token may revoke it. The response is the same in
    all cases.
    """
    origin = origin_of(request, None)
    well_formed_leaks = [leak for leak in body if well_formed(leak.token)]
    if not well_formed_leaks:
        return LeakReceipt(received=len(body))

    def end(session: Session) -> None:
        for leak in well_formed_leaks:
            for token in token_service.revoke_leaked(session, leak.token):
                details = {"user": token.user.name, "url": leak.url, "source": leak.source}
                subject = {"actor": "a report", "owner": token.user.name, "target": token.prefix}
                audit.record(session, origin, **subject, **details)

    database.commit(end)
    return LeakReceipt(received=len(body))


@router.get(_OWNER + "/members", responses=refusals(401, 403, 404, 422))
def list_owner_members(session: ReadSession, caller: Caller, owner: str) -> MemberList:
    """List the members of an owner."""
    return MemberList(data=members.members_of_owner(session, caller, owner))


@router.put(_OWNER + "/members/{user}", responses=_REFUSALS)
@audited("member.set")
def set_owner_role(context: ForManager, owner: str, user: User, body: NewRole) -> MemberList:
    """Invite someone to a role on all environments of an owner, or change the role of a member immediately.

    The response is the same whether or not the user exists. Administrators give a role without an invitation.
    """
    arguments = (context.caller, owner, user, body.role)
    return MemberList(data=context.commit(lambda session: members.change_owner_role(session, *arguments)))


@router.delete(_OWNER + "/members/{user}", responses=_REFUSALS)
@audited("member.remove")
def remove_owner_role(context: ForManager, owner: str, user: User) -> MemberList:
    """Remove a user's role on an owner, or withdraw an invitation. You may always remove your own role."""
    arguments = (context.caller, owner, user, None)
    return MemberList(data=context.commit(lambda session: members.change_owner_role(session, *arguments)))


@router.get("/account/invitations", responses=refusals(401, 403))
def list_invitations(session: ReadSession, caller: Caller) -> InvitationList:
    """List your pending invitations."""
    return InvitationList(data=invitations.invitations_of_caller(session, caller))


@router.post("/account/invitations/{invitation}/accept", responses=_ANSWER_REFUSALS)
@audited("invitation.accept")
def accept_invitation(context: ForManager, invitation: Number) -> InvitationInfo:
    """Accept an invitation."""
    return context.commit(lambda session: invitations.accept_invitation(session, context.caller, invitation))


@router.delete("/account/invitations/{invitation}", responses=_ANSWER_REFUSALS)
@audited("invitation.decline")
def decline_invitation(context: ForManager, invitation: Number) -> InvitationInfo:
    """Decline an invitation."""
    return context.commit(lambda session: invitations.decline_invitation(session, context.caller, invitation))


@router.put(_OWNER + "/settings", responses=_REFUSALS)
@audited("owner.settings")
def change_owner_settings(context: ForManager, owner: str, body: OwnerSettings) -> OwnerSettings:
    """Choose whether an owner's new environments are public, internal or private."""

    def record(session: Session) -> OwnerSettings:
        namespace = rights.owner_for(session, context.caller, "manage", owner)
        internal = body.internal_by_default
        namespace.private_by_default = body.private_by_default or internal
        namespace.internal_by_default = internal
        audit.about(session, visibility_by_default=namespace.default_visibility)
        return OwnerSettings(private_by_default=namespace.private_by_default, internal_by_default=internal)

    return context.commit(record)


@router.get(_ENVIRONMENT + "/members", responses=refusals(401, 403, 404, 422))
def list_environment_members(session: ReadSession, caller: Caller, owner: str, name: str) -> MemberList:
    """List the members of an environment, with their roles on its owner or on the environment itself."""
    return MemberList(data=members.members_of_environment(session, caller, owner, name))


@router.put(_ENVIRONMENT + "/members/{user}", responses=_REFUSALS)
@audited("member.set")
def set_environment_role(context: ForManager, owner: str, name: str, user: User, body: NewRole) -> MemberList:
    """Invite someone to a role on one environment, or change the role of a member immediately.

    The response is the same whether or not the user exists. Administrators give a role without an invitation.
    """
    arguments = (context.caller, owner, name, user, body.role)
    return MemberList(
        data=context.commit(lambda session: members.change_environment_role(session, *arguments))
    )


@router.delete(_ENVIRONMENT + "/members/{user}", responses=_REFUSALS)
@audited("member.remove")
def remove_environment_role(context: ForManager, owner: str, name: str, user: User) -> MemberList:
    """Remove a role on one environment, or withdraw an invitation. You may always remove your own role."""
    arguments = (context.caller, owner, name, user, None)
    return MemberList(
        data=context.commit(lambda session: members.change_environment_role(session, *arguments))
    )
