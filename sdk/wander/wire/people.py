"""What requests and answers on accounts carry, and on the workflows that publish without one."""

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
    """Something that looks like a token and was found where it should not be, as GitHub reports it."""

    token: str = Field(max_length=1000)
    type: str = Field(default="", max_length=100)
    url: str = Field(default="", max_length=2000)
    """Where it was found."""
    source: str = Field(default="", max_length=100)


class LeakReceipt(Body):
    """Says that a report came, and nothing of what was in it."""

    received: Count


class NewPassword(Body):
    """Chooses a password."""

    new: str = Field(max_length=1000)
    old: str | None = Field(default=None, max_length=1000)
    """The present one, of who has one."""
    code: str = Field(default="", max_length=100)
    """Of the second factor, of who has one."""


class UserInfo(Record):
    """A user, as administrators see them."""

    name: Line
    admin: bool
    created_at: datetime
    disabled_at: datetime | None = None
    """Since when nothing lets them in."""
    removed_at: datetime | None = None
    """Since when there is no such user any more; the name is kept from others."""
    second_factor: bool = False
    """Whether signing in asks for one."""


class UserLink(Record):
    """A user, and how they come in."""

    user: UserInfo
    link: Address
    """Where a browser chooses a password with it: once, within a week."""


class UserList(Record):
    """Users by name."""

    data: list[UserInfo]
    next: Line | None = None
    """Where the next page goes on: the last name of this one."""


class ChangedUser(Record):
    """What disabling, enabling or removing a user did."""

    user: UserInfo
    ended_tokens: Count
    ownerless: list[Text]
    """Owners that nobody is left to manage but administrators."""


class InvitationInfo(Record):
    """A role that waits for somebody to accept it."""

    id: Count
    target: Line
    """`owner` or `owner/name`."""
    role: Role
    invited_by: Line
    created_at: datetime
    expires_at: datetime


class InvitationList(Record):
    """What somebody is invited to."""

    data: list[InvitationInfo]


class NewUser(Body):
    """A user to add."""

    name: str = Field(max_length=39)


class NewOwner(Body):
    """Asks for an organisation."""

    name: str = Field(max_length=39)


class OwnerInfo(Record):
    """An owner, as somebody with a role on it sees it."""

    name: Line
    kind: Literal["user", "organisation"]
    """Whether it is a user's own, or one that people make and leave."""
    role: Role
    created_at: datetime


class OwnerList(Record):
    """The owners on which somebody has a role."""

    data: list[OwnerInfo]


class OrganisationInfo(Record):
    """An organisation, as administrators see it."""

    name: Line
    owners: list[Line]
    """Users; without any it is left to administrators."""
    created_at: datetime


class OrganisationList(Record):
    """Organisations by name."""

    data: list[OrganisationInfo]
    next: Line | None = None
    """Where the next page goes on: the last name of this one."""


class NewIdentity(Body):
    """As whom a user may sign in at a provider."""

    subject: str = Field(min_length=1, max_length=255)
    issuer: str | None = Field(default=None, min_length=1, max_length=300)
    """Unset: the hub's provider."""


class IdentityInfo(Record):
    """As whom a user signs in at a provider."""

    issuer: Text
    subject: Text
    created_at: datetime


class IdentityList(Record):
    """All of a user's."""

    data: list[IdentityInfo]


class Password(Body):
    """Proves who asks."""

    password: str = Field(max_length=1000)


class FactorCode(Body):
    """A code of a second factor, or a recovery code."""

    code: str = Field(max_length=100)


class NewSecondFactor(Record):
    """The secret of a second factor, which is shown this once."""

    secret: Word
    uri: Address
    """What authenticator apps read: `otpauth://totp/...`."""


class RecoveryCodes(Record):
    """Codes that stand for a lost second factor, each once; shown this once."""

    data: list[Text]


class SecondFactorState(Record):
    """Whether somebody signs in with a second factor."""

    on: bool
    recovery_codes: Count
    """How many were not used yet."""


Limit = Annotated[int, Field(ge=0, lt=2**53)] | Literal["unlimited"] | None
"""At most so many; None is what the hub's settings say."""


class NewQuota(Body):
    """Says how much an owner may have; what is not said is as the hub's settings say."""

    stored_bytes: Limit = None
    versions: Limit = None
    """Of environments and models."""
    runs: Limit = None


class Allowance(Record):
    """How much of something an owner has and may have."""

    used: Count
    allowed: Count | None
    """None for as much as there is room for."""
    own: bool
    """Whether the limit is this owner's own, and not that of all."""


class OwnerQuota(Record):
    """How much an owner has and may have."""

    owner: Line
    stored_bytes: Allowance
    """Bytes of files, each counted once, and of the runs that the user of this name posted."""
    versions: Allowance
    runs: Allowance


class NewPublisher(Body):
    """Trusts a workflow of a continuous-integration service to publish."""

    name: str | None = Field(default=None, max_length=200)
    """The environment, which need not exist yet; None for all environments of the owner."""
    kind: PublisherKind
    subject: str = Field(min_length=1, max_length=255)
    """`owner/repository` on GitHub, the project's path on GitLab, for `oidc` the whole claim `sub`."""
    workflow: str | None = Field(default=None, pattern=_WORKFLOW)
    """File of the workflow: on GitHub its name below `.github/workflows`, on GitLab its path."""
    deployment: str | None = Field(default=None, min_length=1, max_length=255)
    """The service's own "environment" that the job must run in; None for any."""
    issuer: str | None = Field(default=None, max_length=255)
    """Who signs the claims, where it is not github.com or gitlab.com."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "oidc":
            if self.workflow or self.deployment:
                raise ValueError("for `oidc` the subject says everything: no workflow and no deployment")
            if not self.issuer:
                raise ValueError("for `oidc` the issuer's address is needed")
            return self
        if not self.workflow:
            raise ValueError("the file name of the workflow is needed")
        if self.kind == "github" and "/" in self.workflow:
            raise ValueError("a workflow on GitHub is named by its file below `.github/workflows`")
        parts = self.subject.split("/")
        if len(parts) < 2 or not all(parts) or (self.kind == "github" and len(parts) != 2):
            raise ValueError("the repository is written `owner/repository`")
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
    """Claims of its first use that later ones must repeat: ids that a re-created account does not have."""
    created_by: Line
    created_at: AwareDatetime
    last_used_at: datetime | None = None


class PublisherList(Record):
    """The trusted publishers of an owner."""

    data: list[PublisherInfo]


class MintRequest(Body):
    """Trades an identity token of a service for an API token of the hub."""

    token: str = Field(min_length=1, max_length=16_384)


class MintedToken(Record):
    """An API token that lives for minutes, as PyPI's clients expect it."""

    success: bool = True
    token: Address
    expires: Count
    """Seconds since 1970."""


class Audience(Record):
    """Whom an identity token must be made for."""

    audience: Line
