"""Keeps provenance objects beside their files."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy.orm import Session

from wander_hub.attestations.verification import Outcome
from wander_hub.database import now
from wander_hub.environments import repository
from wander_hub.environments.models import Environment, FileProvenance
from wander_hub.http.problems import HubProblem
from wander_hub.index import service as index


def keep(session: Session, environment: Environment, attested: Mapping[str, Outcome]) -> bool:
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


def document_of(session: Session, owner: str, project: str, version: str, filename: str) -> str:
    """Return the provenance object of a file as JSON; raise a 404 without one."""
    file, _environment = index.file(session, owner, project, filename)
    found = session.get(FileProvenance, file.id)
    if found is None or file.version.version != version:
        raise HubProblem(404, "no_provenance", f"nobody attested `{filename}` of version `{version[:80]}`")
    return found.document
