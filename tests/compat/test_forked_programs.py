"""Python programs of task sets, forked from a process that has imported what they need."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandboxes import answered, confined, needs_sandbox
from wander_compat.tasksets import fork_client, forking
from wander_compat.tasksets.programs import Forker


@pytest.fixture(params=["a path", "loopback"])
def forker(request, tmp_path, monkeypatch):
    """One that speaks over a Unix socket, and one for which there are none, as in a sandbox."""
    if request.param == "loopback":
        if not Path("/proc/self/fd").exists():
            pytest.skip("needs /proc")
        monkeypatch.setattr(fork_client, "__file__", str(without_unix_sockets(tmp_path, fork_client)))
        monkeypatch.setattr(forking, "__name__", without_unix_sockets(tmp_path, forking).stem)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = Forker(["json"])
    yield found
    found._process.stdin.close()
    assert found._process.wait(30) == 0


def without_unix_sockets(place: Path, module) -> Path:
    """Write a copy of a program for which `socket` refuses Unix sockets, as the sandbox's filter does."""
    copy = place / f"confined_{module.__name__.rpartition('.')[2]}.py"
    refuse = (
        "import errno, socket\n"
        "class Confined(socket.socket):\n"
        "    def __init__(self, family=-1, *more, **options):\n"
        "        if family == socket.AF_UNIX and not more and 'fileno' not in options:\n"
        "            raise OSError(errno.EAFNOSUPPORT, 'not supported')\n"
        "        super().__init__(family, *more, **options)\n"
        "socket.socket = Confined\n"
    )
    text = Path(module.__file__).read_text()
    future = "from __future__ import annotations\n"
    place.mkdir(exist_ok=True)
    copy.write_text(text.replace(future, future + refuse) if future in text else refuse + text)
    return copy


def start(forker, *words, **options) -> subprocess.Popen[str]:
    command = forker.command([sys.executable, *words])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, **pipes, **options)


def connect(path: str) -> socket.socket:
    if not Path(path).is_socket():
        return socket.create_connection(("127.0.0.1", int(Path(path).read_text())))
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    return client


def awaited(file: Path) -> str:
    while not (file.exists() and file.read_text().endswith("\n")):
        time.sleep(0.01)
    return file.read_text()


def runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_forked_program_gets_folder_variables_and_arguments(forker, tmp_path):
    (tmp_path / "given.py").write_text(
        "import os, sys\nprint(os.getcwd(), os.environ['WORD'], sys.argv[1:])\nsys.exit('it failed')\n"
    )
    program = start(forker, "given.py", "a b", cwd=tmp_path, env={**os.environ, "WORD": "hello"})
    out, err = program.communicate(timeout=60)
    assert (out, err, program.returncode) == (f"{tmp_path} hello ['a b']\n", "it failed\n", 1)
    assert forker.command(["bash", "-c", "true"]) == ["bash", "-c", "true"]
    module = start(forker, "-m", "json.tool", "--help")
    assert "usage" in module.communicate(timeout=60)[0]


def test_output_and_errors_of_a_program_share_a_file(forker, tmp_path):
    with (tmp_path / "log").open("wb") as log:
        log.write(b"before\n")
        log.flush()
        code = "import os\nfor n in range(4): os.write(1 + n % 2, b'%d\\n' % n)"
        command = forker.command([sys.executable, "-c", code])
        assert subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=60).returncode == 0
    assert (tmp_path / "log").read_text() == "before\n0\n1\n2\n3\n"


def test_child_processes_do_not_keep_the_output_open(forker):
    nothing = "stdin=-3, stdout=-3, stderr=-3, close_fds=False"
    code = f"import subprocess; subprocess.Popen(['sleep', '50'], {nothing})"
    began = time.monotonic()
    assert start(forker, "-c", code).communicate(timeout=45) == ("", "")
    assert time.monotonic() - began < 45


def test_a_program_and_its_children_end_with_the_client(forker, tmp_path):
    noted = tmp_path / "pids"
    code = (
        "import os, signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time\\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nprint(flush=True)\\ntime.sleep(50)'], stdout=-1)\n"
        "child.stdout.readline()\n"
        f"open({str(noted)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}\\n')\n"
        "time.sleep(50)\n"
    )
    with start(forker, "-c", code) as program:
        pids = [int(each) for each in awaited(noted).split()]
        os.killpg(program.pid, signal.SIGKILL)
        while any(map(runs, pids)):
            time.sleep(0.01)


@needs_sandbox
async def test_a_program_is_forked_in_a_real_sandbox(tmp_path):
    code = """
import subprocess, sys
from wander_compat.tasksets.programs import Forker
command = Forker(["json"]).command([sys.executable, "-c", "import sys; print(1); sys.exit('2')"])
done = subprocess.run(command, capture_output=True, text=True)
answer = [done.stdout, done.stderr, done.returncode]
"""
    async with confined(tmp_path) as environment:
        assert await answered(environment, code) == ["1\n", "2\n", 1]


def test_a_client_killed_during_a_request_affects_no_others(forker):
    assert start(forker, "-c", "print(1)").communicate(timeout=60)[0] == "1\n"
    for sent in (b"", (100).to_bytes(4, "big") + b"{"):
        with connect(forker._socket) as client:
            client.sendall(sent)
    program = start(forker, "-c", "print(2)")
    assert program.communicate(timeout=60) == ("2\n", "")
