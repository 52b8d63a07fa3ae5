"""twine, uv and `wander` publish from a workflow that holds no token, over https, to a running hub."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from command_line import make_wheel
from live_hub import BIN, LiveHub, clean_environment, free_port, live_hub, make_token, run_hub
from tls_front import tls_front
from token_issuer import Issuer, github_claims, token_issuer

pytestmark = pytest.mark.full

ENVIRONMENTS = Path(__file__).resolve().parents[2] / "environments"


@dataclass
class Workflow:
    """A job of a continuous-integration service, with a hub that may trust it."""

    hub: LiveHub
    issuer: Issuer
    url: str
    environment: dict[str, str]

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / str(command[0])), *map(str, command[1:])],
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=200,
        )

    def versions(self, name: str) -> list[str]:
        answer = self.hub.get(f"/api/v1/environments/admin/{name}")
        return [] if answer.status_code == 404 else sorted(answer.json()["all_versions"])


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory, mirror: str) -> Iterator[Workflow]:
    folder, port = tmp_path_factory.mktemp("trusted"), free_port()
    url = f"https://localhost:{port}"
    with token_issuer() as issuer:
        settings = {
            "WANDER_HUB_PUBLIC_URL": url,
            "WANDER_HUB_OIDC_ISSUERS": json.dumps({issuer.url: "github"}),
        }
        issuer.job = github_claims()
        with live_hub(folder / "hub", **settings) as hub, tls_front(hub.port, port, folder) as certificate:
            environment = {
                **clean_environment(),
                "HOME": str(folder),
                "GITHUB_ACTIONS": "true",
                "ACTIONS_ID_TOKEN_REQUEST_URL": f"{issuer.url}/job-token?api-version=2",
                "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of-the-job",
                "REQUESTS_CA_BUNDLE": str(certificate),
                "SSL_CERT_FILE": str(certificate),
                "UV_DEFAULT_INDEX": mirror,
                "PIP_INDEX_URL": mirror,
                "UV_CACHE_DIR": str(folder / "uv-cache"),
                "WANDER_HUB": url,
                "WANDER_CONFIG_DIR": str(folder / "config"),
            }
            yield Workflow(hub, issuer, url, environment)


def add_publisher(workflow: Workflow, owner: str, token: str, wanted: dict[str, str]) -> str:
    """Trust the workflow to publish for an owner, and return the path of the publisher."""
    body = {"kind": "github", "subject": "acme/environments", "workflow": "release.yml"}
    path = f"/api/v1/owners/{owner}/publishers"
    added = httpx.post(
        f"{workflow.hub.url}{path}",
        json={**body, "issuer": workflow.issuer.url, **wanted},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert added.status_code == 201, added.text
    return f"{path}/{added.json()['id']}"


def trust(workflow: Workflow, name: str) -> None:
    wanted = {"name": name, "deployment": name}
    add_publisher(workflow, "admin", workflow.hub.token, wanted)
    workflow.issuer.job = github_claims(environment=name)


def test_twine_publishes_with_the_token_of_a_trusted_workflow(workflow: Workflow, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "with-twine")
    workflow.issuer.job = github_claims()
    refused = workflow.run("wander", "auth", "workflow-token")
    assert refused.returncode == 4
    assert "no publisher matches `acme/environments`" in refused.stderr
    trust(workflow, "with-twine")
    token = workflow.run("wander", "auth", "workflow-token").stdout.strip()
    options = ("--username", "__token__", "--password", token, "--non-interactive")
    done = workflow.run(
        "twine", "upload", "--repository-url", f"{workflow.url}/admin/legacy/", *options, wheel
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert workflow.versions("with-twine") == ["0.1.0"]


def test_a_certificate_of_another_authority_is_named(workflow: Workflow) -> None:
    environment = {name: value for name, value in workflow.environment.items() if name != "SSL_CERT_FILE"}
    command = [BIN / "wander", "search", "echo", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (5, "hub_untrusted")
    assert "SSL_CERT_FILE" in error["hint"]


def test_uv_publishes_from_a_trusted_workflow(workflow: Workflow, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "with-uv")
    trust(workflow, "with-uv")
    url = f"{workflow.url}/admin/legacy/"
    done = workflow.run("uv", "publish", "--trusted-publishing", "always", "--publish-url", url, wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    assert workflow.versions("with-uv") == ["0.1.0"]
    workflow.issuer.job = github_claims(environment="elsewhere")
    done = workflow.run("uv", "publish", "--trusted-publishing", "always", "--publish-url", url, wheel)
    assert done.returncode != 0
    assert "elsewhere" in done.stdout + done.stderr


def test_another_user_may_trust_the_same_workflow(workflow: Workflow, tmp_path: Path) -> None:
    run_hub(workflow.hub.data, "user", "add", "mallory")
    theirs = make_token(workflow.hub.data, "mallory")
    path = add_publisher(workflow, "mallory", theirs, {"name": "secret-plan"})
    trust(workflow, "among-others")
    wheel, url = make_wheel(tmp_path, "among-others"), f"{workflow.url}/admin/legacy/"
    done = workflow.run("uv", "publish", "--trusted-publishing", "always", "--publish-url", url, wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    assert workflow.versions("among-others") == ["0.1.0"]
    assert "secret-plan" not in done.stdout + done.stderr
    token = workflow.run("wander", "auth", "workflow-token", "admin/among-others").stdout.strip()
    named = httpx.get(f"{workflow.hub.url}/api/v1/whoami", headers={"Authorization": f"Bearer {token}"})
    assert named.json()["token"]["target"] == "admin/among-others"
    undone = httpx.delete(f"{workflow.hub.url}{path}", headers={"Authorization": f"Bearer {theirs}"})
    assert undone.status_code == 200


def test_wander_publishes_from_a_trusted_workflow(workflow: Workflow, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "build", "dist")
    folder = shutil.copytree(ENVIRONMENTS / "reverse_text", tmp_path / "reverse_text", ignore=ignored)
    command = ("wander", "publish", folder, "--owner", "admin", "--no-check")
    workflow.issuer.job = github_claims(environment="untrusted")
    refused = workflow.run(*command)
    assert refused.returncode == 4, refused.stdout + refused.stderr
    assert "trusted publisher" in refused.stderr
    trust(workflow, "reverse-text")
    done = workflow.run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("publishing with the identity of this workflow") == 1
    assert workflow.versions("reverse-text") == ["0.1.0"]
    assert not (Path(workflow.environment["WANDER_CONFIG_DIR"]) / "credentials.json").exists()
