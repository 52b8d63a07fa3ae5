"""Workers on other machines: the same rollouts over TCP, and every way in which the two may not agree."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from talking_environment import BODY
from wander import LocalEnvironment, Rollout, ScriptedClient
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.errors import ConfigError, LoadError, WorkerUnreachable
from wander.loading import load_path
from wander.wire.package_index import is_loopback
from wander.worker.host import session as worker_session
from wander.worker.host.environment import WorkerEnvironment
from wander.worker.protocol import PROTOCOL
from wander.worker.remote import heartbeat as worker_heartbeat
from wander.worker.remote import link as worker_remote
from wander.worker.remote.address import WorkerAddress, parse_listen, read_token
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

TOKEN = "a-token-of-the-tests"


@dataclass
class Listening:
    """A listener in a process of its own."""

    process: asyncio.subprocess.Process
    address: WorkerAddress
    folder: Path
    said: list[str]

    @property
    def log(self) -> str:
        return (self.folder / "far.log").read_text()


@asynccontextmanager
async def listener(
    folder: Path, *more: str, body: str = BODY, serve: bool = True, at: str | None = None
) -> AsyncIterator[Listening]:
    module, token = folder / "far_environment.py", folder / "token"
    module.write_text(body)
    token.write_text(f"{TOKEN}\n")
    where = ["127.0.0.1:0", "--token-file", str(token)] if at is None else [at]
    served = ["--environment", str(module)] if serve else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "wander.worker", "--listen", *where,
        "--log", str(folder / "far.log"), *served, *more,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    said: list[str] = []
    async with asyncio.timeout(60):
        first = (await process.stderr.readline()).decode()
    assert first.startswith(f"listening on {at or 'tcp://127.0.0.1:'}"), first
    reading = asyncio.create_task(_read(process.stderr, said))
    try:
        address = WorkerAddress.parse(first.split()[-1], TOKEN)
        yield Listening(process, address, folder, said)
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(60):
            await process.wait()
        await reading


async def _read(stream: asyncio.StreamReader, said: list[str]) -> None:
    async for line in stream:
        said.append(line.decode().rstrip())


@asynccontextmanager
async def remote(*addresses: WorkerAddress, folder: Path, **options: Any) -> AsyncIterator[WorkerEnvironment]:
    environment = await WorkerEnvironment.start(
        None, options.pop("target", None), log_path=folder / "near.log", addresses=addresses, **options
    )
    try:
        yield environment
    finally:
        await environment.close()


async def play(environment: Any, *texts: str, index: int = 0) -> Rollout:
    (example,) = await environment.examples("eval", 0, 1)
    return await environment.rollout(ScriptedClient([*texts, "end"]), example, index=index, run_seed=7)


async def number(environment: Any, said: str) -> int:
    return int((await play(environment, said)).completion[1]["content"].split()[-1])


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to that")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that its parent has not asked after yet is gone all the same.
    return sys.platform != "linux" or "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]


def gone(pid: int) -> bool:
    try:
        return not alive(pid)
    except FileNotFoundError:
        return True


async def test_a_socket_is_private(tmp_path: Path) -> None:
    place = tmp_path / "far.sock"
    async with (
        listener(tmp_path, at=f"unix://{place}") as far,
        remote(far.address, folder=tmp_path) as environment,
    ):
        assert str(far.address) == f"unix://{place}"
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert (await play(environment, "roll")).reward == 3.0
    with pytest.raises(WorkerUnreachable, match=f"no worker responds at `unix://{place}`") as gone:
        await WorkerEnvironment.start(None, None, log_path=tmp_path / "near.log", addresses=[far.address])
    assert gone.value.hint == f"start a worker there: `wander worker ENVIRONMENT --listen unix://{place}`"
    for text in ("unix:far.sock", "unix://far.sock", "unix:"):
        with pytest.raises(ConfigError, match="is not the absolute path of a socket"):
            WorkerAddress.parse(text)


async def test_a_remote_worker_plays_the_same_rollouts(tmp_path: Path) -> None:
    times = {"started_at", "seconds", "scoring_seconds", "turns"}
    async with (
        listener(tmp_path, "--workers", "3") as far,
        remote(far.address, folder=tmp_path, workers=3, arguments={"rows": 3}) as environment,
    ):
        local = LocalEnvironment(load_path(tmp_path / "far_environment.py", rows=3))
        assert environment.info == local.info
        for texts in (("roll",), ("fine",), ("big",)):
            theirs, ours = [
                (await play(each, *texts, index=2)).model_dump(exclude=times) for each in (environment, local)
            ]
            assert theirs == ours
            assert ours["reward"] == 3.0


@pytest.mark.full
async def test_closing_runs_remote_teardown_and_leaves_nothing(tmp_path: Path) -> None:
    async with listener(tmp_path) as far:
        async with remote(far.address, folder=tmp_path) as environment:
            pids = [await number(environment, said) for said in ("pid", "child")]
            assert all(alive(pid) for pid in pids)
        await until(lambda: all(gone(pid) for pid in pids))
        assert "torn down" in far.log
        # The place is free again.
        async with remote(far.address, folder=tmp_path) as environment:
            assert await number(environment, "pid") not in pids
        assert not [line for line in far.said if "its worker" in line]


@pytest.mark.parametrize(
    ("token", "says"), [("another-token-entirely", "the token is wrong"), (None, "no token")]
)
async def test_connections_without_the_token_are_rejected(
    tmp_path: Path, token: str | None, says: str
) -> None:
    async with listener(tmp_path) as far:
        address = WorkerAddress(far.address.host, far.address.port, token)
        with pytest.raises(LoadError, match=f"refused the token: .*{says}") as caught:
            async with remote(address, folder=tmp_path):
                pass
        assert "--worker-token-file FILE" in (caught.value.hint or "")
        assert not (tmp_path / "far.log").exists()
    assert says in "\n".join(far.said)


async def test_connections_from_browsers_are_rejected(tmp_path: Path) -> None:
    async with listener(tmp_path) as far:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with pytest.raises(InvalidStatus) as caught:
            await connect(far.address.url, additional_headers=headers, origin="http://evil.example")
        assert caught.value.response.status_code == 403
        # And takes no place from those who may.
        async with remote(far.address, folder=tmp_path) as environment:
            assert (await play(environment, "fine")).failure is None


def test_an_open_address_needs_a_token(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "wander.worker", "--listen", "0.0.0.0:0"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "a token is needed" in done.stderr
    assert "--token-file" in done.stderr


@pytest.mark.full
async def test_requesting_too_many_workers_is_rejected(tmp_path: Path) -> None:
    async with listener(tmp_path, "--workers", "2") as far:
        with pytest.raises(LoadError, match=r"busy: all 2 workers are in use"):
            async with remote(far.address, folder=tmp_path, workers=3):
                pass
        async with remote(far.address, folder=tmp_path, workers=2) as environment:
            assert (await play(environment, "fine")).failure is None


async def test_an_address_without_a_listener_is_reported(tmp_path: Path, unused_tcp_port: int) -> None:
    address = WorkerAddress("127.0.0.1", unused_tcp_port, TOKEN)
    with pytest.raises(LoadError, match=r"no worker responds at `tcp://127\.0\.0\.1") as caught:
        async with remote(address, folder=tmp_path):
            pass
    assert "--listen" in (caught.value.hint or "")


async def test_a_server_that_is_not_a_worker_is_reported(tmp_path: Path, chat_server: Any) -> None:
    with pytest.raises(LoadError, match="is not a worker: HTTP 404"):
        async with remote(WorkerAddress("127.0.0.1", chat_server.port, TOKEN), folder=tmp_path):
            pass


async def test_another_protocol_is_reported_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_session, "PROTOCOL", 99)
    async with listener(tmp_path) as far:
        with pytest.raises(LoadError, match=rf"uses protocol {PROTOCOL}, this .* uses 99") as caught:
            async with remote(far.address, folder=tmp_path):
                pass
        assert caught.value.hint
        await until(lambda: "refused by the host" in far.log)
    assert "uses 99" in far.log


@pytest.mark.full
async def test_a_host_that_sends_garbage_is_disconnected(tmp_path: Path) -> None:
    async with listener(tmp_path) as far:
        async with connect(
            far.address.url, additional_headers={"Authorization": f"Bearer {TOKEN}"}, compression=None
        ) as connection:
            assert b"hello" in await connection.recv(decode=False)
            await connection.send(b"GET / HTTP/1.1")
            with pytest.raises(ConnectionClosed) as caught:
                async with asyncio.timeout(30):
                    await connection.recv()
        assert "an invalid message for protocol" in str(caught.value.rcvd)
    assert "an invalid message for protocol" in "\n".join(far.said)


@pytest.mark.parametrize(
    ("serve", "target", "says"),
    [
        pytest.param(False, None, "folders are not sent", marks=pytest.mark.full),
        (False, "no_such_environment_anywhere", "there is no environment `no_such_environment_anywhere`"),
    ],
)
async def test_missing_environments_are_reported(
    tmp_path: Path, serve: bool, target: str | None, says: str
) -> None:
    async with listener(tmp_path, serve=serve) as far:
        with pytest.raises(LoadError, match=says) as caught:
            async with remote(far.address, folder=tmp_path, target=target):
                pass
    assert "tcp://127.0.0.1" in f"{caught.value} {caught.value.hint}"


@pytest.mark.full
async def test_only_the_named_environment_is_served(tmp_path: Path) -> None:
    async with listener(tmp_path, "--environment", "acme/wordle", serve=False) as far:
        with pytest.raises(LoadError, match="serves `acme/wordle`, not `other`"):
            async with remote(far.address, folder=tmp_path, target="other"):
                pass
        with pytest.raises(LoadError, match="serves `acme/wordle`, not the folder `wordle`"):
            async with remote(far.address, folder=tmp_path, path=tmp_path / "wordle"):
                pass
    async with listener(tmp_path) as far:
        with pytest.raises(LoadError, match="serves the folder `far_environment"):
            async with remote(far.address, folder=tmp_path, target="wordle"):
                pass


@pytest.mark.full
async def test_a_dead_remote_worker_restarts(tmp_path: Path) -> None:
    async with listener(tmp_path) as far, remote(far.address, folder=tmp_path) as environment:
        before = await number(environment, "pid")
        for said, kind, how in (
            ("kill", "WorkerLost", "was killed by SIGKILL"),
            ("exit", "ProcessEnded", "ended with status 3"),
        ):
            failure = (await play(environment, said)).failure
            assert failure is not None
            assert (failure.type, failure.retryable) == (kind, kind == "WorkerLost")
            assert f"process at `{far.address}` {how}" in failure.message
        assert await number(environment, "pid") != before


@pytest.mark.full
async def test_endless_code_on_a_remote_worker_is_stopped(tmp_path: Path) -> None:
    async with (
        listener(tmp_path) as far,
        remote(far.address, folder=tmp_path, rollout_timeout=2.0, stall_seconds=0.5) as environment,
    ):
        failure = (await play(environment, f"block {tmp_path / 'never'}")).failure
        assert failure is not None
        assert (failure.type, failure.retryable) == ("RolloutTimeout", False)
        assert "far_environment.py" in failure.message
        assert (await play(environment, "fine")).failure is None


class Waiting(Client):
    """Never answers."""

    model = "waiting"

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.asked.set()
        await asyncio.sleep(3600)
        raise AssertionError


@pytest.mark.full
async def test_a_hanging_machine_is_detected_and_its_rollouts_are_retryable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_remote, "PING_SECONDS", 0.75)
    async with listener(tmp_path) as far, remote(far.address, folder=tmp_path, restarts=0) as environment:
        (example,) = await environment.examples("eval", 0, 1)
        client = Waiting()
        playing = asyncio.create_task(environment.rollout(client, example))
        await client.asked.wait()
        far.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                failure = (await playing).failure
        finally:
            far.process.send_signal(signal.SIGCONT)
        assert failure is not None
        assert (failure.type, failure.boundary, failure.retryable) == ("WorkerLost", "environment", True)
        assert "did not respond for" in failure.message


@pytest.mark.full
async def test_a_computing_worker_is_not_considered_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_remote, "PING_SECONDS", 0.5)
    beats = 0
    answered = worker_heartbeat._wait_for_pong

    async def counted(connection: Any) -> None:
        nonlocal beats
        await answered(connection)
        beats += 1

    monkeypatch.setattr(worker_heartbeat, "_wait_for_pong", counted)
    gate = tmp_path / "gate"
    async with listener(tmp_path) as far, remote(far.address, folder=tmp_path) as environment:
        blocked = asyncio.create_task(play(environment, f"block {gate}"))
        await until((tmp_path / "gate.blocked").exists)
        since = beats
        # Longer than a silent one would be given.
        await until(lambda: beats > since + 2 * worker_heartbeat.SILENT_PINGS)
        assert not blocked.done()
        gate.touch()
        assert (await blocked).failure is None


@pytest.mark.full
async def test_a_host_that_vanishes_leaves_no_worker(tmp_path: Path) -> None:
    script = f"""
import asyncio, os, signal
from pathlib import Path
from wander import ScriptedClient
from wander.worker.remote.address import WorkerAddress
from wander.worker.host.environment import WorkerEnvironment

async def main():
    environment = await WorkerEnvironment.start(
        None, None, log_path=Path({str(tmp_path / "near.log")!r}),
        addresses=[WorkerAddress("127.0.0.1", PORT, {TOKEN!r})])
    (example,) = await environment.examples("eval", 0, 1)
    rollout = await environment.rollout(ScriptedClient(["pid", "end"]), example)
    print(rollout.completion[1]["content"].split()[-1], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    async with listener(tmp_path) as far:
        host = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script.replace("PORT", str(far.address.port)), stdout=subprocess.PIPE
        )
        async with asyncio.timeout(60):
            out, _ = await host.communicate()
        await until(lambda: gone(int(out)))


@pytest.mark.full
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
async def test_a_listener_that_ends_leaves_no_worker(tmp_path: Path, sign: signal.Signals) -> None:
    async with listener(tmp_path) as far, remote(far.address, folder=tmp_path, restarts=0) as environment:
        pid = await number(environment, "pid")
        far.process.send_signal(sign)
        await until(lambda: gone(pid))


def test_addresses_are_read_in_common_formats(tmp_path: Path) -> None:
    assert str(WorkerAddress.parse("tcp://10.0.0.5:7100")) == "tcp://10.0.0.5:7100"
    assert WorkerAddress.parse("tcp://[::1]:7100").url == "ws://[::1]:7100/"
    assert "secret" not in repr(WorkerAddress("a", 1, "secret"))
    for wrong in (
        "10.0.0.5:7100",
        "http://a:1",
        "tls://a:5",
        "tcp://a",
        "tcp://a:x",
        "tcp://:5",
        "tcp://u@a:5",
        "tcp://a:99999",
    ):
        with pytest.raises(ConfigError, match="not a worker's address"):
            WorkerAddress.parse(wrong)
    assert parse_listen("0.0.0.0:0") == ("0.0.0.0", 0)
    assert parse_listen("[::1]:71") == ("::1", 71)
    for wrong in ("7100", "a", ":7100", "a:b"):
        with pytest.raises(ConfigError, match="not an address to listen on"):
            parse_listen(wrong)
    assert [is_loopback(each) for each in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "far.example")] == [
        True, True, True, False, False
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="cannot read the token file"):
        read_token(tmp_path / "nothing")
    for weak in ("", "short", "two words of some length"):
        (tmp_path / "weak").write_text(weak)
        with pytest.raises(ConfigError, match="at least 16 characters"):
            read_token(tmp_path / "weak")
