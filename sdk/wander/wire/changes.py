"""What requests carry that change something: tokens, roles, visibility, status, places."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from wander.types import Record
from wander.wire.environments import ProjectStatus, Role, TokenInfo, TokenScope
from wander.wire.fields import Line, OwnerName, Word


class Body(Record, defer_build=False):
    """Base of what a request carries; built at once, since FastAPI makes an adapter of it at its start."""


class NewToken(Body):
    """Asks for a token."""

    name: Line = Field(min_length=1, max_length=80)
    """What it is for."""
    scopes: list[TokenScope] = Field(min_length=1)
    target: str | None = Field(default=None, max_length=250)
    """`owner` or `owner/name`."""
    days: int | None = Field(default=90, ge=1, le=3650)
    """Until it expires; None for never."""


class CreatedToken(TokenInfo):
    """A fresh token with its secret, which is shown this once."""

    token: Word


class TokenList(Record):
    """The caller's tokens."""

    data: list[TokenInfo]


class Member(Record):
    """Somebody with a role on an owner or an environment."""

    user: Line
    role: Role
    through: Literal["owner", "environment"]
    """Whether the role is on all of the owner's environments or on this one."""
    pending_until: datetime | None = Field(default=None, exclude_if=lambda until: until is None)
    """So long an invitation waits for whoever has the name; None for a member."""


class MemberList(Record):
    """Who may do what with an owner or an environment."""

    data: list[Member]


class NewRole(Body):
    """Gives somebody a role."""

    role: Role


class OwnerSettings(Body):
    """What holds for an owner's new environments."""

    private_by_default: bool
    internal_by_default: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """They are seen by everybody who is signed in, whatever `private_by_default` says."""


class NewVisibility(Body):
    """Makes an environment public, internal or private."""

    private: bool
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """For everybody who is signed in, whatever `private` says."""


class NewStatus(Body):
    """Changes the status of an environment; `active` takes deprecation, archiving or quarantine back."""

    status: ProjectStatus
    reason: str | None = Field(default=None, max_length=500)
    successor: str | None = Field(default=None, max_length=250)
    """`owner/name`, for a deprecated environment."""


class Reason(Body):
    """Why something is yanked or deleted."""

    reason: str | None = Field(default=None, max_length=500)


class NewPlace(Body):
    """Where an environment goes, or a copy of it: a transfer, a renaming, a fork."""

    owner: str = Field(max_length=39)
    name: str | None = Field(default=None, max_length=200)
    """None keeps the name; a fork always does, since its files carry it."""
    version: str | None = Field(default=None, max_length=100)
    """Of a fork: the version to start from, by default the newest."""


class Whoami(Record):
    """Whose token this is."""

    user: Line
    admin: bool
    owners: list[OwnerName]
    """Owners this user may publish under."""
    token: TokenInfo
