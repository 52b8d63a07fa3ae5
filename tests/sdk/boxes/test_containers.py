"""Boxes by Podman: images, Dockerfiles, limits, and containers whose host was killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wander.boxes.base import BoxLimits, BoxSpec
from wander.boxes.containers import ContainerBackend, _find_fault, _start_words
from wander.boxes.sweep import HOST_LABEL, find_orphans, host_identity, remove_orphans
from wander.errors import SandboxError

IMAGE = "localhost/wander-test:1"
SMALL = BoxLimits(memory_mb=128, disk_mb=16, processes=32, seconds=120)
HOST = """
import asyncio, sys
from wander.boxes.base import BoxSpec
from wander.boxes.containers import ContainerBackend
async def main():
    box = await ContainerBackend("podman").start(BoxSpec(image=sys.argv[1]))
    await box.exec("setsid sleep 31415 >/dev/null 2>&1 &")
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""

pytestmark = pytest.mark.skipif(
    _find_fault("podman") is not None, reason=f"no Podman: {_find_fault('podman')}"
)


def podman(*words: str, **options) -> str:
    done = subprocess.run(["podman", *words], capture_output=True, check=True, **options)
    return done.stdout.decode().strip()


def packed(folder: str) -> bytes:
    return subprocess.run(["tar", "-C", folder, "-c", "."], capture_output=True, check=True).stdout


def commands() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return found


@pytest.fixture(scope="module")
def image(busybox_root) -> str:
    """An image of busybox, which is imported once and stays in the machine's store."""
    podman("import", "--change", "ENV FROM_IMAGE=yes", "-", IMAGE, input=packed(busybox_root))
    return IMAGE


async def test_a_container_runs_commands_and_records_changes(image):
    backend = ContainerBackend("podman")
    spec = BoxSpec(image=image, limits=SMALL)
    played, fresh = await asyncio.gather(backend.start(spec), backend.start(spec))
    try:
        result = await played.exec(
            "id -u; hostname; pwd; echo $FROM_IMAGE; grep Seccomp: /proc/self/status; exit 3"
        )
        assert result.output.splitlines() == ["0", "box", "/work", "yes", "Seccomp:\t2"]
        assert result.exit_status == 3
        assert (await played.exec("sleep 100", seconds=0.3)).exit_status == 124
        await played.exec("kill -9 1; kill -9 -1; for i in $(seq 60); do (true &); done")
        networks = (await played.exec("cat /proc/net/dev")).output.splitlines()[2:]
        assert [line.split(":")[0].strip() for line in networks] == ["lo"]
        await played.exec("echo new > /work/new; rm /work/old.txt; chown 7:7 /work/new")
        await played.upload({"/work/up": b"\xff"})
        state = await played.final_state()
        assert [(change.path, change.kind) for change in state.files] == [
            ("/work/new", "file"),
            ("/work/old.txt", "removed"),
            ("/work/up", "file"),
        ]
        await fresh.restore(state)
        assert (await fresh.final_state()) == state
        assert await fresh.download("/work/up") == b"\xff"
        assert played.image_digest.startswith("image:")
    finally:
        await asyncio.gather(played.stop(), fresh.stop())
    assert not podman("ps", "--all", "--quiet", "--filter", f"label={HOST_LABEL}={host_identity()}")


async def test_a_container_limits_memory_and_processes(image, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    box = await ContainerBackend("podman").start(BoxSpec(image=image, limits=SMALL))
    try:
        assert (await box.exec("dd if=/dev/zero of=/dev/null bs=300M count=1")).exit_status == 137
        bomb = await box.exec("f() { f | f & }; f; sleep 100", seconds=1)
        assert bomb.timed_out or "can't fork" in bomb.output
        assert (await box.exec("echo small > small")).exit_status in (0, 126)
        await box.final_state()
    finally:
        await box.stop()
    assert not list(tmp_path.iterdir()), "the user's folder stays as it was"


async def test_a_container_that_writes_too_much_is_ended(image):
    """In a box of its own, because what is left of a fork bomb may keep the commands from starting."""
    box = await ContainerBackend("podman").start(BoxSpec(image=image, limits=SMALL))
    try:
        fill = "for i in 1 2 3; do dd if=/dev/zero of=/tmp/$i bs=1M count=15; done; sleep 200"
        with pytest.raises(SandboxError, match="wrote more than 16 MiB"):
            await box.exec(fill, seconds=200)
    finally:
        await box.stop()


async def test_a_dockerfile_is_built_once(image, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nCOPY given /given\nRUN echo built >> /given\n")
    (tmp_path / "given").write_text(os.urandom(8).hex())
    backend = ContainerBackend("podman")
    spec = BoxSpec(dockerfile=str(tmp_path), limits=SMALL)
    first, second = await asyncio.gather(backend.start(spec), backend.start(spec))
    try:
        assert "built" in (await first.exec("cat /given")).output
        assert first.image_digest == second.image_digest
    finally:
        await asyncio.gather(first.stop(), second.stop())
        podman("rmi", "--force", first.image_digest.removeprefix("image:"))


async def test_containers_that_cannot_start_are_errors(image, tmp_path):
    backend = ContainerBackend("podman")
    with pytest.raises(SandboxError, match="not on this machine") as raised:
        await backend.start(BoxSpec(image="localhost/no-such-image:1"))
    assert "WANDER_BOX_PULL" in str(raised.value.hint)
    for name in ("--help", "dir:/etc", "dir:etc", "oci-archive:/tmp/image.tar", "a b", "a//b", ""):
        with pytest.raises(SandboxError, match=f"`{name}` is not the name of an image"):
            await backend.start(BoxSpec(image=name))
    with pytest.raises(SandboxError, match="no `Dockerfile`"):
        await backend.start(BoxSpec(dockerfile=str(tmp_path)))
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nRUN no-such-program\n")
    with pytest.raises(SandboxError, match="podman build"):
        await backend.start(BoxSpec(dockerfile=str(tmp_path)))


@pytest.fixture(scope="module")
def image_of_another_machine(busybox_root) -> str:
    """An image that names another architecture."""
    other = "localhost/wander-test-other:1"
    arch = "arm64" if os.uname().machine == "x86_64" else "amd64"
    podman("import", "--arch", arch, "-", other, input=packed(f"{busybox_root}/etc"))
    return other


async def test_an_image_of_another_machine_is_an_error(image_of_another_machine):
    with pytest.raises(SandboxError, match=r"is for (arm64|amd64), and this machine"):
        await ContainerBackend("podman").start(BoxSpec(image=image_of_another_machine))


def test_a_killed_host_leaves_nothing(image):
    with subprocess.Popen([sys.executable, "-c", HOST, image], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"ready\n"
        host.send_signal(signal.SIGKILL)
    remove_orphans("podman")
    assert find_orphans("podman") == []
    assert not [words for words in commands() if b"31415" in words]


def test_only_containers_of_dead_hosts_are_orphans(image):
    boot, namespace, process, _ = host_identity().split("-")
    labels = {
        "alive": host_identity(),
        "reused": f"{boot}-{namespace}-{process}-1",
        "rebooted": f"{'0' * 32}-{namespace}-{process}-1",
        "elsewhere": f"{boot}-1-{process}-1",
    }
    names = {key: f"wander-test-{os.getpid()}-{key}" for key in labels}
    for key, name in names.items():
        podman(
            "create",
            "--network=none",
            "--name",
            name,
            "--label",
            f"{HOST_LABEL}={labels[key]}",
            image,
            "true",
        )
    try:
        assert set(find_orphans("podman")) & set(names.values()) == {names["reused"], names["rebooted"]}
    finally:
        podman("rm", "--force", *names.values())


def test_docker_gets_the_same_arguments_and_reports_errors():
    spec = BoxSpec(image="debian", limits=SMALL)
    podman_words, docker_words = (_start_words(name, "x", "id", spec, {}) for name in ("podman", "docker"))
    assert set(podman_words) - set(docker_words) == {"--no-healthcheck"}
    assert {"--network=none", "--cap-drop=ALL", "--memory=128m", "--pids-limit=40"} <= set(docker_words)
    if shutil.which("docker") is None:
        assert ContainerBackend("docker").unavailable_reason(spec) == "`docker` is not installed"
