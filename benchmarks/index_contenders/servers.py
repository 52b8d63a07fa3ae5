"""Starts each server on loopback, and returns the paths to measure. Each server stops with its block."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "harness"))

from nginx_files import write_configuration  # noqa: E402

BIN = Path(sys.executable).parent
JSON_V1 = "application/vnd.pypi.simple.v1+json"
WHEEL = "bench_pkg_010-1.2.0-py3-none-any.whl"
PEERS = {"devpi": "devpi-server==6.20.3", "pypiserver": "pypiserver[cache]==2.4.2"}

NGINX = """
{user}
worker_processes 1; daemon off; pid {work}/nginx.pid; error_log {work}/nginx.err crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;
  types {{ application/vnd.pypi.simple.v1+json json; }} default_type application/octet-stream;
  client_body_temp_path {work}/t1; proxy_temp_path {work}/t2; fastcgi_temp_path {work}/t3;
  uwsgi_temp_path {work}/t4; scgi_temp_path {work}/t5;
  {servers}
}}
"""
STATIC_SERVER = """
  server {{ listen 127.0.0.1:{port}; root {static}; etag on;
    location /simple/ {{ index index.json; }} location /files/ {{ }} }}
"""


@dataclass
class Server:
    """A running server."""

    name: str
    base: str
    simple: str
    """Path of the index."""
    wheel: str
    """Path of one wheel."""
    process: subprocess.Popen[bytes] | None = None
    upload: str = ""
    login: tuple[str, str] = ("", "")

    def page(self, project: str) -> str:
        return f"{self.base}{self.simple}{project}/"

    def publish(self, wheels: list[Path]) -> tuple[float, float]:
        """Publish wheels one after the other, like twine.

        Returns wheels per second, and milliseconds of the server's processor time per wheel.
        """
        before, started = self.processor_seconds(), time.perf_counter()
        with httpx.Client(auth=self.login, timeout=120) as client:
            for wheel in wheels:
                body = wheel.read_bytes()
                name, version = wheel.name.split("-")[:2]
                form = {":action": "file_upload", "protocol_version": "1", "metadata_version": "2.4"}
                form |= {"name": name.replace("_", "-"), "version": version, "filetype": "bdist_wheel"}
                form |= {"pyversion": "py3", "sha256_digest": hashlib.sha256(body).hexdigest()}
                content = {"content": (wheel.name, body, "application/octet-stream")}
                client.post(f"{self.base}{self.upload}", data=form, files=content).raise_for_status()
        seconds, used = time.perf_counter() - started, self.processor_seconds() - before
        return len(wheels) / seconds, used / len(wheels) * 1e3

    def processor_seconds(self) -> float:
        """Return the processor time of the server, without its children."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: list[str | Path], port: int, log: Path, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | environment)
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError(f"`{command[0]}` ended: {log.read_text()[-500:]}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def wander(work: Path, data: Path, name: str = "wander", **settings: str) -> Iterator[Server]:
    port, token_file = free_port(), data / "token"
    command = [BIN / "wander-hub", "serve", "--port", str(port), "--data", data, "--no-access-log"]
    command += ["--token-file", token_file]
    environment = {"WANDER_HUB_BUNDLED_PACKAGES": "false", "WANDER_HUB_VERIFICATION": "off"}
    environment |= {f"WANDER_HUB_{key.upper()}": value for key, value in settings.items()}
    with running(command, port, work / f"{name}.log", **environment) as process:
        wheel = f"/admin/files/bench-pkg-010/{WHEEL}"
        base = f"http://127.0.0.1:{port}"
        httpx.get(f"{base}/health", timeout=120).raise_for_status()  # it listens before it is ready
        login = ("__token__", token_file.read_text().strip())
        yield Server(name, base, "/admin/simple/", wheel, process, "/admin/legacy/", login)


@contextmanager
def devpi(work: Path, folder: Path) -> Iterator[Server]:
    port, data, bin_ = free_port(), work / "devpi", folder / "bin"
    init = [bin_ / "devpi-init", "--serverdir", data, "--no-root-pypi", "--root-passwd", "x"]
    subprocess.run(init, check=True, capture_output=True)
    command = [bin_ / "devpi-server", "--serverdir", data, "--host", "127.0.0.1", "--port", str(port)]
    with running(command, port, work / "devpi.log") as process:
        base = f"http://127.0.0.1:{port}"
        token = httpx.post(f"{base}/+login", json={"user": "root", "password": "x"}).json()["result"]
        auth = {"X-Devpi-Auth": base64.b64encode(f"root:{token['password']}".encode()).decode()}
        stage = {"type": "stage", "bases": [], "volatile": False}
        httpx.put(f"{base}/root/dev", json=stage, headers=auth).raise_for_status()
        yield Server("devpi", base, "/root/dev/+simple/", "", process, "/root/dev/", ("root", "x"))


def wheel_of_devpi(server: Server) -> str:
    """Return devpi's path of the measured wheel, which depends on its digest and is known only after the
    upload.
    """
    found = re.search(rf'href="([^"#]*{re.escape(WHEEL)})', httpx.get(server.page("bench-pkg-010")).text)
    assert found is not None
    return httpx.URL(server.page("bench-pkg-010")).join(found[1]).raw_path.decode()


@contextmanager
def pypiserver(work: Path, folder: Path, wheels: Path) -> Iterator[Server]:
    port = free_port()
    command = [
        folder / "bin" / "pypi-server",
        "run",
        "-i",
        "127.0.0.1",
        "-p",
        str(port),
        "-a",
        ".",
        "-P",
        ".",
    ]
    command += ["--disable-fallback", "--backend", "cached-dir", "--log-stream", "none", wheels]
    with running(command, port, work / "pypiserver.log") as process:
        yield Server("pypiserver", f"http://127.0.0.1:{port}", "/simple/", f"/packages/{WHEEL}", process)


@contextmanager
def uvicorn(work: Path, static: Path, target: str, name: str) -> Iterator[Server]:
    port = free_port()
    command = [BIN / "uvicorn", f"apps:{target}", "--app-dir", HERE, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--no-access-log", "--log-level", "warning"]
    with running(command, port, work / f"{target}.log", BENCHMARK_STATIC=str(static)) as process:
        yield Server(name, f"http://127.0.0.1:{port}", "/simple/", f"/files/{WHEEL}", process)


@contextmanager
def nginx(work: Path, servers: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    config = work / f"nginx-{port}.conf"
    config.write_text(NGINX.format(work=work, servers=servers, user="user root;" if os.getuid() == 0 else ""))
    with running(["nginx", "-p", work, "-c", config], port, work / "nginx.log") as process:
        yield process


@contextmanager
def static_nginx(work: Path, static: Path) -> Iterator[Server]:
    port = free_port()
    with nginx(work, STATIC_SERVER.format(port=port, static=static), port) as process:
        yield Server("nginx", f"http://127.0.0.1:{port}", "/simple/", f"/files/{WHEEL}", process)


@contextmanager
def nginx_before(work: Path, hub: Server, data: Path, name: str) -> Iterator[Server]:
    """Put nginx in front of a hub, configured as in `deploy/nginx`."""
    port, at = free_port(), hub.base.rpartition(":")[2]
    folder = work / name.replace(" ", "-")
    folder.mkdir()
    listen, upstream = f"127.0.0.1:{port}", f"127.0.0.1:{at}"
    servers = write_configuration(folder, listen=listen, upstreams=[upstream], data=data).read_text()
    with nginx(folder, servers, port) as process:
        yield Server(name, f"http://127.0.0.1:{port}", hub.simple, hub.wheel, process)
