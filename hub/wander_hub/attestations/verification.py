"""Checks attestations against the workflow that uploads: signature, certificate, log, file and identity.

The work is done by `pypi-attestations` and `sigstore` (extra `wander-hub[attestations]`), with the root of
trust that they ship: nothing is asked of the network. What they confirm is kept beside the file.
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
from wander.wire.gate import ATTESTATIONS, Refused, read_json, refusal_of
from wander.wire.transfers import MOST_ATTESTATIONS

from wander_hub.database import now
from wander_hub.environments import repository
from wander_hub.environments.models import Environment, File, FileProvenance
from wander_hub.http.problems import HubProblem

if TYPE_CHECKING:
    from pypi_attestations import Attestation, Publisher

FIELD = "attestations"
"""Of the upload form: a JSON array."""
MOST = MOST_ATTESTATIONS

logger = logging.getLogger("wander_hub")


@dataclass(frozen=True)
class CheckedAttestations:
    """The result of checking the attestations of one file."""

    provenance: dict[str, Any] | None = None
    """The provenance object of PEP 740; None when nothing was attested."""
    ignored: str | None = None
    """The reason why attestations were not checked; None when they were, or there were none."""

    @property
    def warnings(self) -> list[UploadWarning]:
        """What the publisher is told."""
        return [UploadWarning(code="attestations_ignored", detail=self.ignored)] if self.ignored else []


def verify_attestations(
    stated: str | None, filename: str, sha256: str, claims: Mapping[str, str] | None
) -> CheckedAttestations:
    """Return the provenance of a file that was uploaded with attestations.

    `claims` are what the token's publisher proved. uv sends whatever attestation lies beside a file, so those
    that cannot be checked are ignored; one that is checked and false refuses the upload with a 400.
    """
    found = _parse(stated)
    if not found:
        return CheckedAttestations()
    if claims is None:
        return CheckedAttestations(ignored="attestations are taken from trusted publishers alone")
    try:
        import pypi_attestations as library
    except ModuleNotFoundError:
        return CheckedAttestations(
            ignored="this hub checks none: its extra `wander-hub[attestations]` is missing"
        )
    publisher = _publisher(claims)
    if publisher is None:
        return CheckedAttestations(ignored=f"attestations of `{claims.get('kind')}` publishers are not known")
    attestations = [_check(one, publisher, filename, sha256) for one in found]
    bundle = library.AttestationBundle(publisher=publisher, attestations=attestations)
    provenance = library.Provenance(attestation_bundles=[bundle])
    return CheckedAttestations(provenance=provenance.model_dump(mode="json"))


def keep_provenance(
    session: Session, environment: Environment, attested: Mapping[str, CheckedAttestations]
) -> bool:
    """Attach provenance to files by their names, the first of each for good; tell whether any is new.

    The index has to be written after it.
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
    """Of the repository."""


def list_attesters(session: Session, files: Sequence[File]) -> list[Attester]:
    """Return who attested which of these files."""
    wanted = {one.id: one.filename for one in files}
    query = select(FileProvenance).where(FileProvenance.file_id.in_(wanted)).order_by(FileProvenance.file_id)
    found = []
    for one in session.scalars(query):
        for bundle in json.loads(one.document)["attestation_bundles"]:
            publisher = bundle["publisher"]
            workflow = publisher.get("workflow") or publisher.get("workflow_filepath") or ""
            repository, host = publisher["repository"], f"https://{publisher['kind'].lower()}.com"
            found.append(Attester(wanted[one.file_id], repository, workflow, f"{host}/{repository}"))
    return found


def _parse(stated: str | None) -> list[Any]:
    if not stated:
        return []
    try:
        found = read_json(stated, ATTESTATIONS)
    except Refused as error:
        raise _refusal(str(error)) from error
    if not isinstance(found, list) or len(found) > MOST:
        raise _refusal(f"they must be an array of at most {MOST}")
    return found


def _check(stated: Any, publisher: Publisher, filename: str, sha256: str) -> Attestation:
    import pypi_attestations as library
    from pydantic import ValidationError

    try:
        attestation = library.Attestation.model_validate(stated)
        file = library.Distribution(name=filename, digest=sha256)
        attestation.verify(publisher, file, offline=True)
    except ValidationError as error:
        raise _refusal(f"one is malformed: {refusal_of(error)}") from error
    except library.AttestationError as error:
        logger.warning("an attestation of %s is refused: %s", filename, error)
        raise _refusal(str(error)) from error
    return attestation


def _publisher(claims: Mapping[str, str]) -> Publisher | None:
    """Return whom a certificate must be made for: the workflow that the upload's token was given to."""
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
    hint = "upload without attestations, or those that this workflow made of this very file"
    return HubProblem(400, "bad_attestations", f"the attestations are refused: {reason[:500]}", hint=hint)
