"""A box reaches only the hosts that its spec and the machine allow, and no local network."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest
from sandboxes import needs_sandbox
from wander import Rubric, SandboxEnv, ScriptedClient
from wander.boxes import proxy
from wander.boxes.backends import start_box
from wander.boxes.base import BoxLimits, BoxSpec
from wander.boxes.policy import HOSTS, BoxPolicy
from wander.envs import run_commands
from wander.errors import SandboxError

SMALL = BoxLimits(memory_mb=256, disk_mb=16, processes=32, seconds=120)
FETCH = """
import http.client, sys
host, port = sys.argv[1], int(sys.argv[2])
connection = http.client.HTTPConnection("127.0.0.1", 3128, timeout=20)
connection.set_tunnel(host, port)
try:
    connection.request("GET", "/")
    print(connection.getresponse().read().decode())
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("rule", "host", "port", "allowed"),
    [
        ("pypi.org", "PyPI.org.", 443, True),
        ("pypi.org", "pypi.org", 80, False),
        ("pypi.org:80", "pypi.org", 80, True),
        ("pypi.org", "evil-pypi.org", 443, False),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*", "example.org", 443, True),
        ("*", "127.0.0.1", 443, False),
    ],
)
def test_a_rule_allows_a_host_at_a_port(rule, host, port, allowed):
    assert proxy.allows([rule], host, port) is allowed


@pytest.mark.parametrize("rule", ["", "https://pypi.org", "a b", "pypi.org:99999", "*a.org", "a.*.org"])
def test_anything_else_is_not_a_rule(rule):
    with pytest.raises(SandboxError, match="not a host"):
        proxy.allows([rule], "pypi.org", 443)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "169.254.169.254", "100.64.0.1", "224.0.0.1", "0.0.0.0", "::1", "::"),
        *("fe80::1", "fd00::1", "::ffff:10.1.2.3", "64:ff9b::a01:203", "2002:a01:203::1"),
    ],
)
def test_addresses_of_other_networks_are_not_public(address):
    assert not proxy._is_public(ipaddress.ip_address(address))
    assert proxy._is_public(ipaddress.ip_address("1.1.1.1"))
    assert proxy._is_public(ipaddress.ip_address("2606:4700:4700::1111"))


@pytest.mark.parametrize(
    ("machine", "wanted", "refused"),
    [
        ("", ["pypi.org"], "pypi.org"),
        ("pypi.org", ["pypi.org", "*.org"], "*.org"),
        ("*.example.org, pypi.org", ["a.example.org", "*.example.org", "pypi.org"], None),
        ("*", ["*", "*.example.org"], None),
        ("*", ["pypi.org:22"], "pypi.org:22"),
        ("*", ["10.0.0.5"], "10.0.0.5"),
    ],
)
def test_the_machine_allows_no_more_than_its_list(monkeypatch, machine, wanted, refused):
    monkeypatch.setenv(HOSTS, machine)
    spec = BoxSpec(allowed_hosts=wanted)
    if refused is None:
        assert BoxPolicy.from_environ().apply(spec) == spec
    else:
        with pytest.raises(SandboxError) as raised:
            BoxPolicy.from_environ().apply(spec)
        assert f"`{refused}`" in str(raised.value)


async def serve(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\noutside")
    await writer.drain()
    writer.close()


@pytest.fixture
async def port():
    """A server of the host."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@needs_sandbox
async def test_a_box_reaches_listed_addresses_and_nothing_else(monkeypatch, port):
    hosts = [f"127.0.0.1:{port}", f"localhost:{port + 1}", f"localhost:{port}"]
    monkeypatch.setenv(HOSTS, ",".join(hosts))

    async def fetch(host: str, number: int) -> str:
        return (await box.exec(["python3", "-c", FETCH, host, str(number)])).output

    box = await start_box(BoxSpec(limits=SMALL, allowed_hosts=hosts[:2]))
    try:
        assert await fetch("127.0.0.1", port) == "outside\n"
        assert "403" in await fetch("example.org", 443)
        assert "403" in await fetch("localhost", port)
        assert "403" in await fetch("localhost", port + 1)  # allowed, but its address is not public
        plain = "curl -s -o /dev/null -w '%{http_code}' -x $HTTPS_PROXY http://example.org/"
        assert (await box.exec(plain)).output in ("405", "bash: line 1: curl: command not found\n")
        direct = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        assert (await box.exec(["bash", "-c", direct])).exit_status != 0
    finally:
        await box.stop()


async def solved(box) -> float:
    """1 if the model wrote what the server says."""
    return float((await box.exec("cat out")).output == "outside\n")


@needs_sandbox
async def test_a_rollout_names_its_hosts_and_is_never_deterministic(monkeypatch, port):
    class Open(SandboxEnv):
        def box_spec(self, state):
            return BoxSpec(limits=SMALL, allowed_hosts=hosts)

    hosts = [f"127.0.0.1:{port}"]
    monkeypatch.setenv(HOSTS, hosts[0])
    rows = [{"question": "Save the page."}]
    env = SandboxEnv(
        rows, box=BoxSpec(limits=SMALL, allowed_hosts=hosts), rubric=Rubric([solved]), deterministic=True
    )
    assert not env.info.deterministic
    command = f"python3 -c '{FETCH}' 127.0.0.1 {port} > out"
    client = ScriptedClient(run_commands(command))
    rollout = await env.rollout(client, env.dataset("train")[0])
    assert (rollout.failure, rollout.reward, rollout.info["box"]["hosts"]) == (None, 1.0, hosts)
    hidden = await Open(rows, rubric=Rubric([solved])).rollout(client, env.dataset("train")[0])
    assert hidden.failure.boundary == "environment"
    monkeypatch.delenv(HOSTS)
    refused = await env.rollout(client, env.dataset("train")[0])
    assert refused.failure.boundary == "sandbox"
