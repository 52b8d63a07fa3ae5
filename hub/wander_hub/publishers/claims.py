"""What the claims of an identity token must say to be those of a trusted publisher.

GitHub: docs.github.com/actions, "OpenID Connect reference". GitLab: docs.gitlab.com, "ID tokens".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from wander.wire.trusted_publishing import PublisherKind

from wander_hub.publishers.models import Publisher

PINNED: dict[PublisherKind, tuple[str, ...]] = {
    "github": ("repository_owner_id", "repository_id"),
    "gitlab": ("namespace_id", "project_id"),
    "oidc": (),
}
"""Ids that stay with an account: whoever takes a freed name has others."""
SHOWN: dict[PublisherKind, tuple[str, ...]] = {
    "github": ("repository", "sha", "ref", "job_workflow_ref", "run_id", "environment"),
    "gitlab": ("project_path", "sha", "ref", "ci_config_ref_uri", "pipeline_id", "environment"),
    "oidc": ("sub",),
}
"""Claims that are kept with what was published."""
_SUBJECT: dict[PublisherKind, str] = {"github": "repository", "gitlab": "project_path", "oidc": "sub"}


def subject_of(kind: PublisherKind, claims: Mapping[str, Any]) -> str:
    """Return the claim that a publisher is looked up by, as it is stored."""
    return normal_subject(kind, str(claims.get(_SUBJECT[kind], "")))


def normal_subject(kind: PublisherKind, subject: str) -> str:
    """Return the spelling of a subject that is stored: names of repositories have no case."""
    return subject if kind == "oidc" else subject.lower()


def difference(publisher: Publisher, claims: Mapping[str, Any]) -> str | None:
    """Say why the claims are not those of a publisher whose issuer and subject fit; None when they are."""
    if publisher.kind == "github" and claims.get("event_name") == "pull_request_target":
        return "a workflow that runs on `pull_request_target` runs for strangers, and may not publish"
    workflow = _workflow(publisher, claims)
    if publisher.workflow is not None and workflow != publisher.workflow:
        return f"the workflow is `{workflow or '?'}`, not `{publisher.workflow}`"
    deployment = str(claims.get("environment", ""))
    if publisher.deployment is not None and deployment.lower() != publisher.deployment.lower():
        return f"the job runs in the environment `{deployment}`, not in `{publisher.deployment}`"
    for claim, first in (publisher.pinned or {}).items():
        if str(claims.get(claim, "")) != first:
            return (
                f"`{claim}` is `{claims.get(claim, '')}`, and was `{first}` at the first use: "
                "another account has taken the name"
            )
    return None


def pins_of(kind: PublisherKind, claims: Mapping[str, Any]) -> dict[str, str]:
    """Return what later tokens must repeat."""
    return {claim: str(claims[claim]) for claim in PINNED[kind] if claim in claims}


def select_claims(kind: PublisherKind, claims: Mapping[str, Any]) -> dict[str, str]:
    """Return what is kept of the claims: where, from which commit and by which run."""
    found = {claim: str(claims[claim])[:500] for claim in SHOWN[kind] if claims.get(claim) not in (None, "")}
    return {"issuer": str(claims["iss"]), **found}


def _workflow(publisher: Publisher, claims: Mapping[str, Any]) -> str | None:
    """Return the file of the workflow that runs, when it lies in the publisher's own repository."""
    if publisher.kind == "github":
        home, reference = f"{publisher.subject}/.github/workflows/", str(claims.get("job_workflow_ref", ""))
    else:
        host = urlsplit(publisher.issuer).netloc
        home, reference = f"{host}/{publisher.subject}//", str(claims.get("ci_config_ref_uri", ""))
    if not reference.lower().startswith(home.lower()):
        return None
    path, at, _ = reference[len(home) :].partition("@")
    return path if at else None
