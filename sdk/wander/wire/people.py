"""Requests and answers about accounts, organizations and quotas, and about trusted publishers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from wander.types import Record
from wander.wire.changes import Body
from wander.wire.environments import Role
from wander.wire.fields import Address, Count, Line, Text, Word

PublisherKind = Literal["github", "gitlab", "oidc"]

_WORKFLOW = r"^[A-Za-z0-9._][A-Za-z0-9._/-]{0,199}\.ya?ml$"


class LeakedToken(Body):
    """A possible token that was found in a public place, as reported by GitHub's secret scanning."""

    token: str = Field(max_length=1000)
    type: str = Field(default="", max_length=100)
    url: str = Field(default="", max_length=2000)
    """Address where the token was found."""
    source: str = Field(default="", max_length=100)


class LeakReceipt(Body):
    """The number of reported tokens. The answer does not reveal which of them are real."""

    received: Count


class NewPassword(Body):
    """Request to set a password."""

    new: str = Field(max_length=1000)
    old: str | None = Field(default=None, max_length=1000)
    """Current password; None for a user without a password."""
    code: str = Field(default="", max_length=100)
    """Code of the second factor; empty for a user without a second factor."""


class UserInfo(Record):
    """A user, as administrators see them."""

    name: Line
    admin: bool
    created_at: datetime
    disabled_at: datetime | None = None
    """Time when the user was disabled; a disabled user cannot sign in or use tokens."""
    removed_at: datetime | None = None
    """Time when the user was removed; the name stays reserved."""
    second_factor: bool = False
    """Whether the user signs in with a second factor."""


class UserLink(Record):
    """A user with a link that lets them set a password."""

    user: UserInfo
    link: Address
    """Address of the page for setting a password. It works once, within a week."""


class UserList(Record):
    """A page of users, sorted by name."""

    data: list[UserInfo]
    next: Line | None = None
    """Cursor of the next page: the last name on this page."""


class ChangedUser(Record):
    """The result of disabling, enabling or removing a user."""

    user: UserInfo
    ended_tokens: Count
    ownerless: list[Text]
    """Owners that only administrators can manage from now on."""


class InvitationInfo(Record):
    """A role that a user has been offered and has not accepted yet."""

    id: Count
    target: Line
    """`owner` or `owner/name`."""
    role: Role
    invited_by: Line
    created_at: datetime
    expires_at: datetime


class InvitationList(Record):
    """A user's open invitations."""

    data: list[InvitationInfo]


class NewUser(Body):
    """Request to add a user."""

    name: str = Field(max_length=39)


class NewOwner(Body):
    """Request to create an organization."""

    name: str = Field(max_length=39)


class OwnerInfo(Record):
    """An owner, as seen by a user who has a role on it."""

    name: Line
    kind: Literal["user", "organization"]
    """Whether the owner is a user or an organization."""
    role: Role
    created_at: datetime


class OwnerList(Record):
    """The owners where the caller has a role."""

    data: list[OwnerInfo]


class OrganizationInfo(Record):
    """An organization, as administrators see it."""

    name: Line
    owners: list[Line]
    """Users with the role `owner`. If the list is empty, only administrators can manage the organization."""
    created_at: datetime


class OrganizationList(Record):
    """A page of organizations, sorted by name."""

    data: list[OrganizationInfo]
    next: Line | None = None
    """Cursor of the next page: the last name on this page."""


class NewIdentity(Body):
    """Request to let a user sign in with an identity at a sign-in provider."""

    subject: str = Field(min_length=1, max_length=255)
    issuer: str | None = Field(default=None, min_length=1, max_length=300)
    """Issuer of the identity; None means the hub's provider."""


class IdentityInfo(Record):
    """An identity that a user signs in with at a sign-in provider."""

    issuer: Text
    subject: Text
    created_at: datetime


class IdentityList(Record):
    """All identities of a user."""

    data: list[IdentityInfo]


class Password(Body):
    """The caller's password, as proof of identity."""

    password: str = Field(max_length=1000)


class FactorCode(Body):
    """A code of a second factor, or a recovery code."""

    code: str = Field(max_length=100)


class NewSecondFactor(Record):
    """The secret of a second factor, which the hub shows only once."""

    secret: Word
    uri: Address
    """Address for authenticator apps: `otpauth://totp/...`."""


class RecoveryCodes(Record):
    """Codes that replace a lost second factor. Each works once, and the hub shows them only once."""

    data: list[Text]


class SecondFactorState(Record):
    """Whether a user signs in with a second factor."""

    on: bool
    recovery_codes: Count
    """Number of unused recovery codes."""


Limit = Annotated[int, Field(ge=0, lt=2**53)] | Literal["unlimited"] | None
"""Maximum of a quota; None means the default in the hub's settings."""


class NewQuota(Body):
    """Request to set the quota of an owner. Limits that are None follow the hub's settings."""

    stored_bytes: Limit = None
    versions: Limit = None
    """Maximum number of versions of environments and models together."""
    runs: Limit = None


class Allowance(Record):
    """An owner's use of a resource, and the owner's limit."""

    used: Count
    allowed: Count | None
    """Maximum; None means unlimited."""
    own: bool
    """Whether the limit was set for this owner, rather than taken from the hub's settings."""


class OwnerQuota(Record):
    """An owner's use of the hub's resources, and the owner's limits."""

    owner: Line
    stored_bytes: Allowance
    """Bytes of the owner's files, each counted once, and of the runs posted by the user of this name."""
    versions: Allowance
    runs: Allowance


class NewPublisher(Body):
    """Request to trust a workflow of a continuous-integration service as a publisher."""

    name: str | None = Field(default=None, max_length=200)
    """Name of the environment, which may not exist yet; None means all environments of the owner."""
    kind: PublisherKind
    subject: str = Field(min_length=1, max_length=255)
    """`owner/repository` on GitHub, the project's path on GitLab, or the whole claim `sub` for `oidc`."""
    workflow: str | None = Field(default=None, pattern=_WORKFLOW)
    """File of the workflow: its name in `.github/workflows` on GitHub, its path on GitLab."""
    deployment: str | None = Field(default=None, min_length=1, max_length=255)
    """Deployment environment of the service that the job must run in; None means any."""
    issuer: str | None = Field(default=None, max_length=255)
    """Issuer that signs the claims, if it is not github.com or gitlab.com."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "oidc":
            if self.workflow or self.deployment:
                raise ValueError("an `oidc` publisher has a subject only: leave out workflow and deployment")
            if not self.issuer:
                raise ValueError("an `oidc` publisher needs the address of its issuer")
            return self
        if not self.workflow:
            raise ValueError("the file name of the workflow is missing")
        if self.kind == "github" and "/" in self.workflow:
            raise ValueError("a GitHub workflow must be the name of a file in `.github/workflows`")
        parts = self.subject.split("/")
        if len(parts) < 2 or not all(parts) or (self.kind == "github" and len(parts) != 2):
            raise ValueError("the repository must have the form `owner/repository`")
        return self


class PublisherInfo(Record):
    """A trusted publisher."""

    id: Count
    owner: Line
    name: Line | None
    kind: PublisherKind
    issuer: Text
    subject: Text
    workflow: Text | None = None
    deployment: Text | None = None
    pinned: dict[Text, Text] = Field(default_factory=dict)
    """Claims recorded at the first use that later uses must match. They contain ids, which differ if an
    account is deleted and created again."""
    created_by: Line
    created_at: AwareDatetime
    last_used_at: datetime | None = None


class PublisherList(Record):
    """The trusted publishers of an owner."""

    data: list[PublisherInfo]


class MintRequest(Body):
    """Request to exchange an identity token of a service for an API token of the hub."""

    token: str = Field(min_length=1, max_length=16_384)


class MintedToken(Record):
    """An API token that is valid for a few minutes, in the format that PyPI's clients expect."""

    success: bool = True
    token: Address
    expires: Count
    """Unix time when the token expires, in seconds."""


class Audience(Record):
    """The audience that an identity token for this hub must have."""

    audience: Line
