"""`wander sandbox sweep` removes the containers of killed processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from wander.boxes.sweep import HOST_LABEL, host_identity


def test_without_containers_nothing_is_removed(wander):
    result = wander("sandbox", "sweep", "--json")
    assert result.status == 0
    assert isinstance(json.loads(result.out)["data"]["removed"], list)


@pytest.mark.skipif(shutil.which("podman") is None or os.geteuid() != 0, reason="no Podman of root")
def test_a_container_of_a_killed_process_is_removed(wander, tmp_path):
    (tmp_path / "empty.tar").write_bytes(bytes(10240))
    image = "localhost/wander-test-empty:1"
    name = f"wander-test-sweep-{os.getpid()}"
    label = f"{HOST_LABEL}={host_identity().rpartition('-')[0]}-1"
    subprocess.run(["podman", "import", "--quiet", str(tmp_path / "empty.tar"), image], check=True)
    subprocess.run(
        ["podman", "create", "--network=none", "--name", name, "--label", label, image, "x"], check=True
    )
    assert name in json.loads(wander("sandbox", "sweep", "--json").out)["data"]["removed"]
    left = subprocess.run(
        ["podman", "ps", "-a", "--format={{.Names}}"], capture_output=True, text=True, check=True
    )
    assert name not in left.stdout.split()
