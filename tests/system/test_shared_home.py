"""Two machines with one home: each has its own host name and its own process numbers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from machine import Machine

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of another machine need root"),
]

MACHINES = ("first", "second")


def start_on(host: str, machine: Machine, *arguments: object) -> subprocess.Popen[str]:
    """Start `wander` with another host name, and process numbers that begin at 1."""
    script = f'hostname {host} && exec "$0" "$@"'
    namespaces = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    return subprocess.Popen(
        [*namespaces, "sh", "-c", script, *machine.command("wander", *arguments)],
        cwd=machine.home,
        env=machine.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_machines_can_share_a_home_folder(machine: Machine) -> None:
    source = Path(__file__).resolve().parents[2] / "environments" / "reverse_text"
    ignored = shutil.ignore_patterns("__pycache__", "build", "dist")
    project = shutil.copytree(source, machine.home / "project", ignore=ignored)
    machine.wander("publish", project, "--no-check")
    for arguments in (
        ("install", "admin/reverse-text"),
        ("eval", "admin/reverse-text", "-m", "scripted:reverse_text.players:random", "-n", "4"),
    ):
        processes = [start_on(host, machine, *arguments) for host in MACHINES]
        for process in processes:
            out, err = process.communicate(timeout=300)
            assert process.returncode == 0, f"{out}\n{err}"
            assert "Traceback" not in err
    assert len(list((machine.home / "runs").glob("*/run.json"))) == 2
