"""Attestations (PEP 740): real ones are checked and served, false ones refuse the upload."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from attested_package import AttestedPackage, attested_package
from staged_uploads import VERSIONS, StagedUpload, announced
from token_issuer import AUDIENCE, Issuer, github_claims
from wander_hub.attestations import verification
from wander_hub.settings import Settings
from wander_hub.upload import checks

JSON_V1 = "application/vnd.pypi.simple.v1+json"
INTEGRITY_V1 = "application/vnd.pypi.integrity.v1+json"
REPOSITORY = "trailofbits/pypi-attestations"
CLAIMS = github_claims(
    repository=REPOSITORY,
    job_workflow_ref=f"{REPOSITORY}/.github/workflows/release.yml@refs/tags/v0.0.19",
    environment="release",
)
PROVED = {"kind": "github", **{name: str(value) for name, value in CLAIMS.items()}}
PROVENANCE = "/alice/integrity/pypi-attestations/0.0.19/pypi_attestations-0.0.19.tar.gz/provenance"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> AttestedPackage:
    found = attested_package(tmp_path_factory.mktemp("attested"))
    if found is None:
        pytest.skip("the package index has no source archive of pypi-attestations")
    return found


@pytest.fixture(autouse=True)
def any_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The material is a plain package; nobody's environment comes with real signatures yet."""
    monkeypatch.setattr(checks, "check_environment", lambda _package: None)


@pytest.fixture
def settings(settings: Settings, issuer: Issuer) -> Settings:
    return settings.model_copy(update={"oidc_issuers": {issuer.url: "github"}, "oidc_audience": AUDIENCE})


@pytest.fixture
async def trusted(hub: Any, issuer: Issuer) -> dict[str, str]:
    """Headers of the workflow that published the package in truth."""
    publisher = {"kind": "github", "subject": REPOSITORY, "workflow": "release.yml", "issuer": issuer.url}
    added = await hub.client.post("/api/v1/owners/alice/publishers", json=publisher, headers=hub.auth())
    assert added.status_code == 201, added.text
    minted = await hub.client.post("/_/oidc/mint-token", json={"token": issuer.token(**CLAIMS)})
    return {"Authorization": f"Bearer {minted.json()['token']}"}


def digest(package: AttestedPackage) -> str:
    return hashlib.sha256(package.body).hexdigest()


async def test_an_attested_file_has_its_provenance_in_the_index(hub, trusted, package):
    fields = {"attestations": f"[{package.publish},{package.slsa}]"}
    answer = await hub.upload(package.body, package.filename, headers=trusted, fields=fields)
    assert answer.status_code == 200, answer.text
    page = (await hub.get("/alice/simple/pypi-attestations/", headers={"Accept": JSON_V1})).json()
    (entry,) = page["files"]
    assert entry["provenance"] == f"../..{PROVENANCE.removeprefix('/alice')}"
    html = (await hub.get("/alice/simple/pypi-attestations/")).text
    assert f'data-provenance="{entry["provenance"]}"' in html
    found = await hub.get(PROVENANCE)
    assert (found.status_code, found.headers["content-type"]) == (200, INTEGRITY_V1)
    (bundle,) = found.json()["attestation_bundles"]
    assert (bundle["publisher"]["kind"], bundle["publisher"]["repository"]) == ("GitHub", REPOSITORY)
    assert bundle["attestations"] == [json.loads(package.publish), json.loads(package.slsa)]
    shown = (await hub.get("/alice/pypi-attestations", headers={"Accept": "text/html"})).text
    assert f'release.yml</span> of <a href="https://github.com/{REPOSITORY}"' in shown
    assert f'<a href="{PROVENANCE}">{package.filename}</a>' in shown
    refused = await hub.get(PROVENANCE, headers={"Accept": "text/csv"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")
    other = await hub.get(PROVENANCE.replace("/0.0.19/", "/0.0.18/"))
    assert (other.status_code, other.json()["code"]) == (404, "no_provenance")


def session_of(package: AttestedPackage, *stated: str) -> dict[str, Any]:
    """Return what opens a staged upload of the package."""
    body = announced({package.filename: package.body}, name="pypi-attestations", version="0.0.19")
    body["files"][0]["attestations"] = [json.loads(one) for one in stated]
    return body


async def begun(hub: Any, headers: dict[str, str], package: AttestedPackage) -> StagedUpload:
    answer = await hub.client.post(VERSIONS, json=session_of(package, package.publish), headers=headers)
    files = {package.filename: [package.body]}
    return StagedUpload(hub.client, headers, files, VERSIONS, answer.json()["id"], answer)


async def test_a_staged_upload_includes_attestations(hub, trusted, package):
    spoiled = json.loads(package.publish)
    spoiled["envelope"]["signature"] = spoiled["envelope"]["signature"][::-1]
    refused = await hub.client.post(VERSIONS, json=session_of(package, json.dumps(spoiled)), headers=trusted)
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_attestations"), "before a byte is sent"
    upload = await begun(hub, trusted, package)
    await upload.send_all()
    done = await upload.finalize()
    assert done.status_code == 201, done.text
    assert "attestations_ignored" not in [one["code"] for one in done.json()["warnings"]]
    (bundle,) = (await hub.get(PROVENANCE)).json()["attestation_bundles"]
    assert bundle["attestations"] == [json.loads(package.publish)]
    page = (await hub.get("/alice/simple/pypi-attestations/", headers={"Accept": JSON_V1})).json()
    assert page["files"][0]["provenance"].endswith("/provenance")


async def test_attestations_of_a_staged_upload_without_a_trusted_publisher_are_reported(hub, package):
    upload = await begun(hub, hub.auth(), package)
    await upload.send_all()
    (warning,) = [one for one in (await upload.finalize()).json()["warnings"] if "attest" in one["code"]]
    assert (warning["code"], warning["filename"]) == ("attestations_ignored", package.filename)
    assert (await hub.get(PROVENANCE)).status_code == 404


async def test_an_invalid_attestation_rejects_the_upload(hub, trusted, package):
    spoiled = json.loads(package.publish)
    spoiled["envelope"]["signature"] = spoiled["envelope"]["signature"][::-1]
    for stated in (json.dumps([spoiled]), "[{}]", "{}", "[", f"[{','.join([package.publish] * 11)}]"):
        answer = await hub.upload(
            package.body, package.filename, headers=trusted, fields={"attestations": stated}
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_attestations"), stated[:80]
    kept = await hub.get("/api/v1/environments/alice/pypi-attestations")
    assert kept.status_code == 404, "nothing is kept"


async def test_attestations_without_a_trusted_publisher_are_ignored(hub, package):
    fields = {"attestations": f"[{package.publish}]"}
    answer = await hub.upload(package.body, package.filename, fields=fields)
    assert answer.status_code == 200, answer.text
    assert "attestations_ignored" in [one["code"] for one in answer.json()["warnings"]]
    page = (await hub.get("/alice/simple/pypi-attestations/", headers={"Accept": JSON_V1})).json()
    assert "provenance" not in page["files"][0]
    assert (await hub.get(PROVENANCE)).json()["code"] == "no_provenance"


async def test_provenance_of_a_private_file_is_private(hub, trusted, package):
    fields = {"attestations": f"[{package.publish}]", "wander_visibility": "private"}
    answer = await hub.upload(package.body, package.filename, headers=trusted, fields=fields)
    assert answer.status_code == 200, answer.text
    assert (await hub.get(PROVENANCE)).status_code == 401
    assert (await hub.get(PROVENANCE, headers=hub.auth("bob"))).status_code == 401
    assert (await hub.get(PROVENANCE, headers=hub.auth())).status_code == 200


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"repository": "evil/pypi-attestations"}, "does not match"),
        ({"job_workflow_ref": f"{REPOSITORY}/.github/workflows/other.yml@refs/tags/v1"}, "match"),
    ],
)
def test_an_attestation_of_another_workflow_is_rejected(package, changes, said):
    stated = f"[{package.publish}]"
    good = verification.verify_attestations(stated, package.filename, digest(package), PROVED)
    assert good.provenance is not None
    with pytest.raises(verification.HubProblem, match=said):
        verification.verify_attestations(stated, package.filename, digest(package), {**PROVED, **changes})


def test_an_attestation_of_another_file_is_rejected(package):
    stated = f"[{package.publish}]"
    for name, sha256 in ((package.filename, "0" * 64), ("other-0.0.19.tar.gz", digest(package))):
        with pytest.raises(verification.HubProblem, match="subject does not match"):
            verification.verify_attestations(stated, name, sha256, PROVED)


def test_without_the_extra_attestations_are_ignored(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pypi_attestations", None)
    found = verification.verify_attestations("[{}]", "a-1.tar.gz", "0" * 64, PROVED)
    assert found.provenance is None
    assert "wander-hub[attestations]" in (found.ignored or "")
    assert (
        verification.verify_attestations("[]", "a-1.tar.gz", "0" * 64, PROVED)
        == verification.CheckedAttestations()
    )
