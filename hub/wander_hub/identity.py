"""Who a caller is and what it may do: the one place that weighs roles against tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, get_args

from wander.wire import Role, TokenInfo, TokenScope

Permission = Literal["read", "results", "publish", "maintain", "manage"]
"""`maintain`: yank, deprecate and fork, which maintainers may, though not with a token that only uploads."""

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
    """By owner id: the user's role on all environments of that owner."""
    grants: Mapping[int, Role] = field(default_factory=dict)
    """By environment id: the user's role on that one alone."""
    owners: tuple[str, ...] = ()
    """Owners under which this token may publish something, sorted."""
    only_owner: int | None = None
    """Id of the owner that the token is good for; None for any."""
    only_environment: int | None = None
    """Id of the environment that the token is good for; None for any, 0 for one that does not exist yet."""
    only_new: tuple[int, str] | None = None
    """Owner's id and name of the one environment that the token may begin, though it is good for no other."""
    only_version: int | None = None
    """Id of the version, of `only_environment`, that the token of a job reads; None for all of them."""
    only_run: str | None = None
    """The run that the token of a job reads, of the runs of its version; None for all of those."""
    required: frozenset[int] = frozenset()
    """Ids of the environments that `only_version` requires, which its token reads too."""
    token_id: int | None = None
    """Of the token's row."""
    claims: Mapping[str, str] | None = None
    """What a trusted publisher proved to get the token."""
    browser_session: int | None = None
    """Id of the session of a browser, which may do all that its user may; None for a caller with a token."""

    def __hash__(self) -> int:
        """Return one number for all that are equal: statements are kept by who reads."""
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
        """Tell whether the caller may do this to an environment."""
        if permission == "read" and not private:
            return True
        open_to_all = (internal or not private) and _NEEDED[permission] == 1
        covered = self.covers(permission, owner_id, environment_id)
        return covered and (open_to_all or self.rank_on(owner_id, environment_id) >= _NEEDED[permission])

    def may_as_owner(self, permission: Permission, owner_id: int) -> bool:
        """Tell whether the caller may do this to everything of an owner, new environments included."""
        return self.covers(permission, owner_id, None) and self.rank_on(owner_id, None) >= _NEEDED[permission]

    def may_begin(self, owner_id: int, name: str) -> bool:
        """Tell whether the caller may publish a new environment of this name."""
        if self.only_new == (owner_id, name):
            return "publish" in self.token.scopes and self.rank_on(owner_id, None) >= _NEEDED["publish"]
        return self.may_as_owner("publish", owner_id)

    def covers(self, permission: Permission, owner_id: int, environment_id: int | None) -> bool:
        """Tell whether the token is meant for this, whatever its user may."""
        if permission != "read" and scope_for(permission) not in self.token.scopes:
            return False
        if self.only_environment is not None:
            reads_it = permission == "read" and environment_id in self.required
            return environment_id == self.only_environment or reads_it
        return self.only_owner in (None, owner_id)

    def rank_on(self, owner_id: int, environment_id: int | None) -> int:
        """Return the user's rank: 0 for none, then reader, maintainer and owner."""
        if self.admin:
            return _RANK["owner"]
        given = [self.roles.get(owner_id)]
        if environment_id is not None:
            given.append(self.grants.get(environment_id))
        return max((_RANK[role] for role in given if role is not None), default=0)

    @property
    def whole(self) -> bool:
        """Tell whether the token may do everything that its user may, so also make other tokens."""
        return "manage" in self.token.scopes and self.only_owner is None and self.only_environment is None

    @property
    def administers(self) -> bool:
        """Tell whether the caller speaks for the whole hub."""
        return self.admin and self.whole


HUB = Identity(
    user_id=0,
    user="the hub",
    admin=True,
    token=TokenInfo(name="the hub", prefix="", created_at=datetime.fromtimestamp(0, UTC)),
)
"""The hub's own work, which reads everything: checks, repairs, its bundled packages."""


JOB_TOKEN = "verification, "  # noqa: S105 - how the names of such tokens begin
"""Of the tokens with which jobs of the hub itself read it."""


def scope_for(permission: Permission) -> TokenScope:
    """Return the scope that a token needs for this."""
    return "manage" if permission == "maintain" else permission


def outranks(role: Role, other: Role) -> bool:
    """Tell whether a role gives more than another."""
    return _RANK[role] > _RANK[other]
