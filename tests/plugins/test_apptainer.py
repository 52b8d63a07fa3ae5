"""Boxes by Apptainer: what can be tested without the program."""

from __future__ import annotations

from pathlib import Path

import pytest
from wander.boxes import backends, containers
from wander.boxes.base import BoxLimits, BoxSpec
from wander.boxes.policy import BACKEND
from wander.boxes.sweep import host_identity
from wander.errors import SandboxError, install_command
from wander_integrations import apptainer


def test_an_instance_has_no_network_no_host_files_and_all_limits():
    spec = BoxSpec(root="/srv/root", limits=BoxLimits(memory_mb=512, processes=32))
    words = apptainer.start_words(
        "name", Path("/srv/root"), Path("/tmp/name"), spec, {"codex": Path("/cache/codex")}
    )
    assert words == [
        *("instance", "start", "--fakeroot", "--containall", "--no-home", "--no-mount", "hostfs,bind-paths"),
        *("--net", "--network", "none", "--hostname", "box", "--overlay", "/tmp/name"),
        *("--memory", "512M", "--memory-swap", "512M", "--pids-limit", "40"),
        *("--bind=/cache/codex:/opt/codex:ro", "/srv/root", "name"),
    ]


async def test_unsupported_options_of_apptainer_are_errors(monkeypatch, tmp_path):
    monkeypatch.setenv(BACKEND, "apptainer")
    monkeypatch.setenv("PATH", str(tmp_path))
    script = tmp_path / "root/.singularity.d/startscript"
    script.parent.mkdir(parents=True)
    script.touch()
    for spec, said in (
        (BoxSpec(image="debian"), "not installed"),
        (BoxSpec(), "needs an `image` or a `root` folder"),
        (BoxSpec(dockerfile="."), "cannot build a Dockerfile"),
        (BoxSpec(image="docker-daemon:debian"), "not the name of an image"),
        (BoxSpec(root="/"), "the host's own"),
        (BoxSpec(root=str(tmp_path / "root")), "before the box is confined"),
    ):
        with pytest.raises(SandboxError, match=said):
            await backends.start_box(spec)


def test_apptainer_is_never_chosen_unless_it_is_named(monkeypatch, tmp_path):
    program = tmp_path / "apptainer"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(containers, "_find_fault", lambda name: f"`{name}` is not installed")
    assert backends.choose_backend(BoxSpec(image="debian"), "apptainer").name == "apptainer"
    with pytest.raises(SandboxError):
        backends.choose_backend(BoxSpec(image="debian"))


def test_without_the_plugin_the_error_names_what_to_install(monkeypatch):
    others = {name: backend for name, backend in backends.backends().items() if name != "apptainer"}
    monkeypatch.setattr(backends, "backends", lambda: others)
    with pytest.raises(SandboxError) as caught:
        backends.choose_backend(BoxSpec(), "apptainer")
    assert install_command("wander-integrations") in caught.value.hint


def test_only_folders_of_dead_hosts_are_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(apptainer.tempfile, "tempdir", str(tmp_path))
    gone = f"{'0' * 32}-1-2-3"
    for name in (f"wander-box-{host_identity()}-a", "wander-box-of-a-user", f"wander-box-{gone}-a"):
        (tmp_path / name).mkdir()
    apptainer._remove_left_folders()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [f"wander-box-{host_identity()}-a", "wander-box-of-a-user"]
    )
