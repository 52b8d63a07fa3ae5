"""Verification of attestations: signature, certificate, transparency log, file, and the uploading workflow.

`pypi-attestations` and `sigstore` do the work (extra `wander-hub[attestations]`), offline and with the root
of trust that they ship. Verified attestations are stored with the file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from wander.wire import UploadWarning
from wander.wire.transfers import MOST_ATTESTATIONS
from wander.wire.untrusted_text import ATTESTATIONS, RefusedText, read_json, refusal_of

from wander_hub.database import now
from wander_hub.environments import repository
from wander_hub.environments.models import Environment, File, FileProvenance
from wander_hub.http.problems import HubProblem

if TYPE_CHECKING:
    from pypi_attestations import Attestation, Publisher

FIELD = "attestations"
"""Field of the upload form, a JSON array."""
MOST = MOST_ATTESTATIONS

logger = logging.getLogger("wander_hub")


@dataclass(frozen=True)
class CheckedAttestations:
    """The result of checking the attestations of one file."""

    provenance: dict[str, Any] | None = None
    """Provenance object of PEP 740; None without verified attestations."""
    ignored: str | None = None
    """Reason why attestations were ignored; None if they were verified or the upload had no attestations."""

    @property
    def warnings(self) -> list[UploadWarning]:
        """Warnings for the publisher."""
        return [UploadWarning(code="attestations_ignored", detail=self.ignored)] if self.ignored else []


def verify_attestations(
    stated: str | None, filename: str, sha256: str, claims: Mapping[str, str] | None
) -> CheckedAttestations:
    """Return the provenance of a file that was uploaded with attestations.

    `claims` are the verified claims of the token's publisher. uv uploads any attestation next to a file, so
    attestations that cannot be verified are ignored. An attestation that fails verification rejects the
    upload with a 400 problem.
    """
    stated_attestations = _parse(stated)
    if not stated_attestations:
        return CheckedAttestations()
    if claims is None:
        return CheckedAttestations(ignored="attestations are only accepted from trusted publishers")
    try:
        import pypi_attestations as library
    except ModuleNotFoundError:
        return CheckedAttestations(
            ignored="this hub cannot verify attestations without its extra `wander-hub[attestations]`"
        )
    publisher = _publisher(claims)
    if publisher is None:
        return CheckedAttestations(ignored=f"attestations of `{claims.get('kind')}` are not supported")
    attestations = [_check(attestation, publisher, filename, sha256) for attestation in stated_attestations]
    bundle = library.AttestationBundle(publisher=publisher, attestations=attestations)
    provenance = library.Provenance(attestation_bundles=[bundle])
    return CheckedAttestations(provenance=provenance.model_dump(mode="json"))


def keep_provenance(
    session: Session, environment: Environment, attested: Mapping[str, CheckedAttestations]
) -> bool:
    """Store the provenance of files by their names, unless they already have one; return whether any is new.

    The index must be rendered again afterwards.
    """
    new = False
    for filename, outcome in attested.items():
        if outcome.provenance is None:
            continue
        file = repository.file_of(session, environment, filename)
        assert file is not None
        if session.get(FileProvenance, file.id) is None:
            document = json.dumps(outcome.provenance, separators=(",", ":"), sort_keys=True)
            session.add(FileProvenance(file_id=file.id, document=document, created_at=now()))
            new = True
    session.flush()
    return new


@dataclass(frozen=True)
class Attester:
    """The workflow that attested a file."""

    filename: str
    repository: str
    workflow: str
    address: str
    """Address of the repository."""


def list_attesters(session: Session, files: Sequence[File]) -> list[Attester]:
    """Return the workflows that attested these files."""
    wanted = {file.id: file.filename for file in files}
    query = select(FileProvenance).where(FileProvenance.file_id.in_(wanted)).order_by(FileProvenance.file_id)
    attesters = []
    for provenance in session.scalars(query):
        for bundle in json.loads(provenance.document)["attestation_bundles"]:
            publisher = bundle["publisher"]
            workflow = publisher.get("workflow") or publisher.get("workflow_filepath") or ""
            repository, host = publisher["repository"], f"https://{publisher['kind'].lower()}.com"
            filename = wanted[provenance.file_id]
            attesters.append(Attester(filename, repository, workflow, f"{host}/{repository}"))
    return attesters


def _parse(stated: str | None) -> list[Any]:
    if not stated:
        return []
    try:
        attestations = read_json(stated, ATTESTATIONS)
    except RefusedText as error:
        raise _refusal(str(error)) from error
    if not isinstance(attestations, list) or len(attestations) > MOST:
        raise _refusal(f"they must be an array of at most {MOST} attestations")
    return attestations


def _check(stated: Any, publisher: Publisher, filename: str, sha256: str) -> Attestation:
    import pypi_attestations as library
    from pydantic import ValidationError

    try:
        attestation = library.Attestation.model_validate(stated)
        file = library.Distribution(name=filename, digest=sha256)
        attestation.verify(publisher, file, offline=True)
    except ValidationError as error:
        raise _refusal(f"an attestation is malformed: {refusal_of(error)}") from error
    except library.AttestationError as error:
        logger.warning("rejected an attestation of %s: %s", filename, error)
        raise _refusal(str(error)) from error
    return attestation


def _publisher(claims: Mapping[str, str]) -> Publisher | None:
    """Return the identity that a certificate must have: the workflow to which the upload's token was
    given."""
    import pypi_attestations as library

    environment = claims.get("environment")
    if claims.get("kind") == "github":
        workflow = claims.get("job_workflow_ref", "").partition("@")[0].rpartition("/")[2]
        return library.GitHubPublisher(
            repository=claims["repository"], workflow=workflow, environment=environment
        )
    if claims.get("kind") == "gitlab":
        path = claims.get("ci_config_ref_uri", "").partition("//")[2].partition("@")[0]
        return library.GitLabPublisher(
            repository=claims["project_path"], workflow_filepath=path, environment=environment
        )
    return None


def _refusal(reason: str) -> HubProblem:
    hint = "upload without attestations, or with attestations that this workflow made for this file"
    return HubProblem(400, "bad_attestations", f"the attestations are invalid: {reason[:500]}", hint=hint)
