"""Documents of a version: attached once, kept while anything needs them, gone with the version."""

from __future__ import annotations

import hashlib
import io

import pytest
from wander_hub.environments import documents
from wander_hub.environments import repository as environments
from wander_hub.fsck import check as fsck
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.transfers import objects

PATH = "/api/v1/environments/alice/reverse-text"


def attached(hub, storage, text: bytes, version: str = "0.1.0") -> str:
    """Attach a lock to alice's environment; return its digest."""
    body, sha256 = io.BytesIO(text), hashlib.sha256(text).hexdigest()
    storage.put(body)
    with hub.database.write(HUB) as session:
        environment = environments.environment_named(session, "alice", "reverse-text")
        found = environments.version_of(session, environment, version)
        documents.attach(session, storage, found, "lock", body, sha256, len(text))
    return sha256


async def test_a_document_is_attached_once_and_deleted_with_its_version(hub, make_wheel):
    storage = hub.client._transport.app.state.storage
    await hub.publish(make_wheel())
    await hub.publish(make_wheel(version="0.2.0"))
    digest = attached(hub, storage, b"one")
    assert attached(hub, storage, b"one") == digest, "the same again is fine"
    with pytest.raises(HubProblem) as refused:
        attached(hub, storage, b"other")
    assert (refused.value.status, refused.value.code) == (409, "document_exists")
    other = hashlib.sha256(b"other").hexdigest()
    assert objects.discard(hub.database, storage, [digest, other]) == [other]
    with hub.database.read(HUB) as session:
        environment = environments.environment_named(session, "alice", "reverse-text")
        version = environments.version_of(session, environment, "0.1.0")
        found = documents.document_of(session, version, "lock")
        assert found is not None
        assert storage.read(found.sha256) == b"one"
    assert list(fsck.find_mismatches(hub.database, storage)) == []
    await hub.client.delete(f"{PATH}/versions/0.1.0", headers=hub.auth())
    assert not storage.exists(digest)
    assert list(fsck.find_mismatches(hub.database, storage)) == []
