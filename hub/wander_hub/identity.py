"""The caller and their permissions. Only this module combines roles with the scopes of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, get_args

from wander.wire import Role, TokenInfo, TokenScope

Permission = Literal["read", "results", "publish", "maintain", "manage"]
"""`maintain` covers yank and deprecate. Maintainers may do these, but not with a token that can only
upload."""

ALL_SCOPES: tuple[TokenScope, ...] = get_args(TokenScope)
_RANK: dict[Role, int] = {"reader": 1, "maintainer": 2, "owner": 3}
_NEEDED: dict[Permission, int] = {"read": 1, "results": 1, "publish": 2, "maintain": 2, "manage": 3}


@dataclass(frozen=True)
class Identity:
    """The authenticated caller of one request."""

    user_id: int
    user: str
    admin: bool
    token: TokenInfo
    roles: Mapping[int, Role] = field(default_factory=dict)
    """The user's role on all environments of an owner, by owner ID."""
    grants: Mapping[int, Role] = field(default_factory=dict)
    """The user's role on a single environment, by environment ID."""
    owners: tuple[str, ...] = ()
    """Names of the owners under which this token may publish something, sorted."""
    only_owner: int | None = None
    """ID of the only owner that the token is valid for; None if it is valid for all owners."""
    only_environment: int | None = None
    """ID of the only environment that the token is valid for; None if it is valid for all, 0 for a new
    environment."""
    only_new: tuple[int, str] | None = None
    """Owner id and name of the only new environment that the token may create."""
    only_version: int | None = None
    """Id of the only version of `only_environment` that a job's token reads; None if it reads all
    versions."""
    only_run: str | None = None
    """Id of the only run of that version that a job's token reads; None if it reads all runs of the
    version."""
    required: frozenset[int] = frozenset()
    """Ids of the environments that `only_version` requires. A job's token reads them as well."""
    token_id: int | None = None
    """Id of the token's row."""
    claims: Mapping[str, str] | None = None
    """Verified claims of the trusted publisher that obtained the token."""
    browser_session: int | None = None
    """Id of the browser session, which has all permissions of its user; None for a caller with a token."""

    def __hash__(self) -> int:
        """Return a hash of the fields that identify the reader, because statements are cached by reader."""
        return hash((self.user_id, self.token_id, self.browser_session, self.only_run))

    def may(
        self,
        permission: Permission,
        owner_id: int,
        environment_id: int,
        *,
        private: bool,
        internal: bool = False,
    ) -> bool:
        """Return whether the caller has a permission on an environment."""
        if permission == "read" and not private:
            return True
        open_to_all = (internal or not private) and _NEEDED[permission] == 1
        covered = self.covers(permission, owner_id, environment_id)
        return covered and (open_to_all or self.rank_on(owner_id, environment_id) >= _NEEDED[permission])

    def may_as_owner(self, permission: Permission, owner_id: int) -> bool:
        """Return whether the caller has a permission on everything of an owner, including new
        environments."""
        return self.covers(permission, owner_id, None) and self.rank_on(owner_id, None) >= _NEEDED[permission]

    def may_begin(self, owner_id: int, name: str) -> bool:
        """Return whether the caller may publish a new environment of this name."""
        if self.only_new == (owner_id, name):
            return "publish" in self.token.scopes and self.rank_on(owner_id, None) >= _NEEDED["publish"]
        return self.may_as_owner("publish", owner_id)

    def covers(self, permission: Permission, owner_id: int, environment_id: int | None) -> bool:
        """Return whether the token covers a permission; this ignores the role of its user."""
        if permission != "read" and scope_for(permission) not in self.token.scopes:
            return False
        if self.only_environment is not None:
            reads_it = permission == "read" and environment_id in self.required
            return environment_id == self.only_environment or reads_it
        return self.only_owner in (None, owner_id)

    def rank_on(self, owner_id: int, environment_id: int | None) -> int:
        """Return the user's rank: 0 without a role, then 1 for reader, 2 for maintainer and 3 for owner."""
        if self.admin:
            return _RANK["owner"]
        roles = [self.roles.get(owner_id)]
        if environment_id is not None:
            roles.append(self.grants.get(environment_id))
        return max((_RANK[role] for role in roles if role is not None), default=0)

    @property
    def whole(self) -> bool:
        """Whether the token has all permissions of its user, so that it may also create other tokens."""
        return "manage" in self.token.scopes and self.only_owner is None and self.only_environment is None

    @property
    def administers(self) -> bool:
        """Whether the caller administers the whole hub."""
        return self.admin and self.whole


HUB = Identity(
    user_id=0,
    user="the hub",
    admin=True,
    token=TokenInfo(name="the hub", prefix="", created_at=datetime.fromtimestamp(0, UTC)),
)
"""Identity of the hub itself, which reads everything: for checks, repairs and bundled packages."""


JOB_TOKEN = "verification, "  # noqa: S105 - a prefix of token names, not a secret
"""Prefix of the names of the tokens that the hub's own jobs use to read from it."""


def scope_for(permission: Permission) -> TokenScope:
    """Return the scope that a token needs for a permission."""
    return "manage" if permission == "maintain" else permission


def outranks(role: Role, other: Role) -> bool:
    """Return whether a role has more rights than another role."""
    return _RANK[role] > _RANK[other]
