"""What changes environments, roles and tokens on a hub: one function a route, over `HubApi.change`."""

from __future__ import annotations

from wander.wire import (
    BoardInfo,
    BoardSettings,
    EnvironmentDetail,
    Leaderboard,
    Role,
    TokenInfo,
    VersionDetail,
)
from wander.wire.boards import BOARD_COLUMNS
from wander.wire.changes import (
    CreatedToken,
    Member,
    MemberList,
    NewPlace,
    NewRole,
    NewStatus,
    NewToken,
    NewVisibility,
    OwnerSettings,
    Reason,
    TokenList,
)
from wander.wire.environments import Visibility, marks_of
from wander.wire.models import HubModel, ModelRevision, ModelRevisions
from wander.wire.people import InvitationInfo, InvitationList, NewOwner, OwnerInfo, OwnerList, OwnerQuota
from wander.wire.trusted_publishing import NewPublisher, PublisherInfo, PublisherList

from wander_client.errors import NotFound
from wander_client.hub.api import HubApi, environment_path, model_path, quote_part
from wander_client.names import EnvironmentName, parse_name

_INVITATIONS = "/api/v1/account/invitations"


def yank(hub: HubApi, name: EnvironmentName, reason: str | None, *, undo: bool) -> VersionDetail:
    """Yank a version or offer it again."""
    path = _path(name, "versions", name.version or "", "yank")
    method, body = ("DELETE", None) if undo else ("PUT", Reason(reason=reason))
    return hub.change(method, path, VersionDetail, body)


def delete_version(hub: HubApi, name: EnvironmentName, reason: str | None) -> VersionDetail:
    """Delete the files of a version."""
    path = _path(name, "versions", name.version or "")
    return hub.change("DELETE", path, VersionDetail, params={"reason": reason})


def delete_environment(hub: HubApi, name: EnvironmentName, reason: str | None) -> None:
    """Delete an environment with all its files."""
    hub.change("DELETE", _path(name), None, params={"reason": reason})


def set_status(hub: HubApi, name: EnvironmentName, status: NewStatus) -> EnvironmentDetail:
    """Deprecate, archive, quarantine, or take that back."""
    return hub.change("PUT", _path(name, "status"), EnvironmentDetail, status)


def set_visibility(hub: HubApi, name: EnvironmentName, choice: Visibility) -> EnvironmentDetail:
    """Make an environment public, internal or private."""
    return hub.change("PUT", _path(name, "visibility"), EnvironmentDetail, _visibility(choice))


def transfer(hub: HubApi, name: EnvironmentName, place: NewPlace) -> EnvironmentDetail:
    """Give an environment another owner or name."""
    return hub.change("POST", _path(name, "transfer"), EnvironmentDetail, place)


def fork(hub: HubApi, name: EnvironmentName, place: NewPlace) -> EnvironmentDetail:
    """Begin an environment with a version of another's."""
    return hub.change("POST", _path(name, "fork"), EnvironmentDetail, place)


def set_default_visibility(hub: HubApi, owner: str, choice: Visibility) -> OwnerSettings:
    """Choose what new environments of an owner are."""
    private, internal = marks_of(choice)
    body = OwnerSettings(private_by_default=private, internal_by_default=internal)
    return hub.change("PUT", f"/api/v1/owners/{quote_part(owner)}/settings", OwnerSettings, body)


def members(hub: HubApi, target: str) -> list[Member]:
    """Return who has a role on an owner or an environment."""
    return hub.read(f"{_target(target)}/members", MemberList).data


def quota(hub: HubApi, owner: str) -> OwnerQuota:
    """Return how much an owner has and may have."""
    return hub.read(f"{_target(owner)}/quota", OwnerQuota)


def set_role(hub: HubApi, target: str, user: str, role: Role) -> list[Member]:
    """Give somebody a role."""
    path = f"{_target(target)}/members/{quote_part(user)}"
    return hub.change("PUT", path, MemberList, NewRole(role=role)).data


def remove_role(hub: HubApi, target: str, user: str) -> list[Member]:
    """Take somebody's role."""
    return hub.change("DELETE", f"{_target(target)}/members/{quote_part(user)}", MemberList).data


def owners(hub: HubApi) -> list[OwnerInfo]:
    """Return the owners on which the caller has a role."""
    return hub.read("/api/v1/owners", OwnerList).data


def make_organisation(hub: HubApi, name: str) -> OwnerInfo:
    """Make an organisation."""
    return hub.change("POST", "/api/v1/owners", OwnerInfo, NewOwner(name=name.lower()))


def remove_organisation(hub: HubApi, name: str) -> None:
    """End all roles, invitations, tokens and trust of an organisation."""
    hub.change("DELETE", f"/api/v1/organisations/{quote_part(name)}", None)


def leave(hub: HubApi, target: str) -> None:
    """Give one's own role up."""
    remove_role(hub, target, hub.whoami().user)


def invitations(hub: HubApi) -> list[InvitationInfo]:
    """Return the roles that wait for the caller."""
    return hub.read(_INVITATIONS, InvitationList).data


def answer_invitation(hub: HubApi, target: str, *, accept: bool) -> InvitationInfo:
    """Take the role that waits for the caller on an owner or an environment, or refuse it."""
    wanted = str(parse_name(target)) if "/" in target else target.lower()
    found = next((one for one in invitations(hub) if one.target == wanted), None)
    if found is None:
        raise NotFound(
            f"no invitation to `{target}` waits for you",
            hint="run `wander auth invitation list`",
            code="invitation_not_found",
        )
    path = f"{_INVITATIONS}/{found.id}"
    if accept:
        return hub.change("POST", f"{path}/accept", InvitationInfo)
    return hub.change("DELETE", path, InvitationInfo)


def new_token(hub: HubApi, wanted: NewToken) -> CreatedToken:
    """Make a token for yourself."""
    return hub.change("POST", "/api/v1/tokens", CreatedToken, wanted)


def tokens(hub: HubApi) -> list[TokenInfo]:
    """Return your tokens without their secrets."""
    return hub.read("/api/v1/tokens", TokenList).data


def revoke(hub: HubApi, prefix: str) -> TokenInfo:
    """End a token."""
    return hub.change("DELETE", f"/api/v1/tokens/{quote_part(prefix)}", TokenInfo)


def publishers(hub: HubApi, owner: str) -> list[PublisherInfo]:
    """Return the workflows that may publish for an owner."""
    return hub.read(f"/api/v1/owners/{quote_part(owner)}/publishers", PublisherList).data


def add_publisher(hub: HubApi, owner: str, wanted: NewPublisher) -> PublisherInfo:
    """Trust a workflow."""
    return hub.change("POST", f"/api/v1/owners/{quote_part(owner)}/publishers", PublisherInfo, wanted)


def remove_publisher(hub: HubApi, owner: str, number: int) -> PublisherInfo:
    """Trust a workflow no more."""
    return hub.change("DELETE", f"/api/v1/owners/{quote_part(owner)}/publishers/{number}", PublisherInfo)


def boards(hub: HubApi, name: EnvironmentName) -> tuple[list[BoardInfo], Leaderboard]:
    """Return the busiest boards of a version, the one that it shows first before the others, and that one."""
    first = hub.leaderboard(name.owner, name.name, version=name.version, runs="all", sort="posted", limit=1)
    if not first.rows:
        return list(first.others), first
    shown = {field: getattr(first, field) for field in BoardInfo.model_fields if field != "last_posted_at"}
    return [BoardInfo(**shown, last_posted_at=first.rows[0].posted_at), *first.others], first


def settings_of(shown: Leaderboard) -> BoardSettings:
    """Return how a board's owners show it now."""
    return BoardSettings(
        title=shown.title,
        description=shown.description,
        columns=None if shown.columns == list(BOARD_COLUMNS) else shown.columns,
        pinned=shown.pinned,
        refuses_rescored=shown.refuses_rescored,
    )


def arrange_board(hub: HubApi, shown: Leaderboard, wanted: BoardSettings) -> BoardInfo:
    """Show a board so."""
    path = environment_path(shown.owner, shown.name, "versions", shown.version, "boards", shown.board or "")
    return hub.change("PUT", path, BoardInfo, wanted)


def yank_model(hub: HubApi, model: HubModel, reason: str | None, *, undo: bool) -> ModelRevision:
    """Yank a revision of a model or offer it again."""
    path = model_path(model.owner, model.name, "revisions", model.revision or "", "yank")
    method, body = ("DELETE", None) if undo else ("PUT", Reason(reason=reason))
    return hub.change(method, path, ModelRevision, body)


def delete_model(hub: HubApi, model: HubModel, reason: str | None) -> None:
    """Delete the files of a revision, or of a whole model where none is named."""
    below = ("revisions", model.revision) if model.revision is not None else ()
    hub.change("DELETE", model_path(model.owner, model.name, *below), None, params={"reason": reason})


def set_model_visibility(hub: HubApi, model: HubModel, choice: Visibility) -> ModelRevisions:
    """Make a model public, internal or private."""
    path = model_path(model.owner, model.name, "visibility")
    return hub.change("PUT", path, ModelRevisions, _visibility(choice))


def _path(name: EnvironmentName, *rest: str) -> str:
    return environment_path(name.owner, name.name, *rest)


def _target(target: str) -> str:
    """Return the path of an owner or an environment."""
    if "/" in target:
        return _path(parse_name(target))
    return f"/api/v1/owners/{quote_part(target.lower())}"


def _visibility(choice: Visibility) -> NewVisibility:
    private, internal = marks_of(choice)
    return NewVisibility(private=private, internal=internal)
