"""What client and hub say of trusted publishers: workflows that publish without a stored token."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from wander.types import Record
from wander.wire.changes import Body
from wander.wire.fields import Address, Count, Line, Text

PublisherKind = Literal["github", "gitlab", "oidc"]

_WORKFLOW = r"^[A-Za-z0-9._][A-Za-z0-9._/-]{0,199}\.ya?ml$"


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
