"""A call to a port of the process itself is no use of the network."""

from __future__ import annotations

import socket
import subprocess
import sys

from wander.checks.sources import is_own_port


def test_a_port_is_own_while_this_process_listens_on_it():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = listening.getsockname()
        assert not is_own_port(address)
        listening.listen()
        assert is_own_port(address)
        assert is_own_port(("localhost", address[1]))
        assert not is_own_port(("10.0.0.1", address[1]))
    assert not is_own_port(address)
    assert not is_own_port("/tmp/socket")


def test_a_port_of_another_process_is_not():
    code = (
        "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        assert not is_own_port(("127.0.0.1", port))
        other.communicate("")
