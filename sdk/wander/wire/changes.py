"""Bodies of requests that change tokens, roles, visibility, status, owners and names, with their answers."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from wander.types import Record
from wander.wire.environments import ProjectStatus, Role, TokenInfo, TokenScope
from wander.wire.fields import Line, OwnerName, Word


class Body(Record, defer_build=False):
    """Base of request bodies. Its schema is built immediately, because FastAPI needs it at start-up."""


class NewToken(Body):
    """Request for a token."""

    name: Line = Field(min_length=1, max_length=80)
    """Name that reminds the user of the token's purpose."""
    scopes: list[TokenScope] = Field(min_length=1)
    target: str | None = Field(default=None, max_length=250)
    """`owner` or `owner/name` that the token is limited to."""
    days: int | None = Field(default=90, ge=1, le=3650)
    """Days until the token expires; None means that it never does."""


class CreatedToken(TokenInfo):
    """A new token with its secret, which the hub shows only once."""

    token: Word


class TokenList(Record):
    """The caller's tokens."""

    data: list[TokenInfo]


class Member(Record):
    """A user with a role on an owner or an environment."""

    user: Line
    role: Role
    through: Literal["owner", "environment"]
    """Whether the role covers all of the owner's environments or only this environment."""
    pending_until: datetime | None = Field(default=None, exclude_if=lambda until: until is None)
    """Time when the user's invitation expires; None for a user who has accepted the role."""


class MemberList(Record):
    """The users who have a role on an owner or an environment."""

    data: list[Member]


class NewRole(Body):
    """Request to give a user a role."""

    role: Role


class OwnerSettings(Body):
    """Default visibility of an owner's new environments."""

    private_by_default: bool
    internal_by_default: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """Whether every signed-in user sees new environments; takes precedence over `private_by_default`."""


class NewVisibility(Body):
    """Request to make an environment public, internal or private."""

    private: bool
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """Whether every signed-in user sees the environment; takes precedence over `private`."""


class NewStatus(Body):
    """Request to change the status of an environment.

    `active` ends a deprecation, an archiving or a quarantine.
    """

    status: ProjectStatus
    reason: str | None = Field(default=None, max_length=500)
    successor: str | None = Field(default=None, max_length=250)
    """`owner/name` of the environment to use instead of a deprecated environment."""


class Reason(Body):
    """Reason for a yank or a deletion."""

    reason: str | None = Field(default=None, max_length=500)


class TransferTarget(Body):
    """New owner and name of an environment, for a transfer or a renaming."""

    owner: str = Field(max_length=39)
    name: str | None = Field(default=None, max_length=200)
    """New name; None keeps the old name."""


class Whoami(Record):
    """The user that the request's token belongs to."""

    user: Line
    admin: bool
    owners: list[OwnerName]
    """Owners this user may publish under."""
    token: TokenInfo
