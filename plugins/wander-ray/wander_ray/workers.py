"""Workers that Ray places: an actor keeps a listener on its node, and hosts connect to that as to any other.

    ray://HOST:6379      one worker on that cluster; `ray://HOST:6379/8` are eight

So the protocol, the token and what a lost worker costs are those of `wander worker`. An actor whose node is
gone is started again by Ray, elsewhere, and the host asks it where it listens before each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.context import CommonOptions, Invocation
from wander_client.errors import ClientError, UsageError
from wander_client.terminal.output import Output

from wander_ray.cluster import NodeError, Versions, connected

if TYPE_CHECKING:
    from wander.worker.remote.address import WorkerAddress, WorkerPlace
    from wander_client.environments.location import Location

_START_SECONDS = 300.0
"""Seconds that Ray may take to find a processor and start the listener."""
_LISTENING = "listening on "


@dataclass(frozen=True)
class _Job:
    """The settings of an actor."""

    environment: str
    """`owner/name@version`, or a folder that all nodes have."""
    token: str = field(repr=False)
    variables: dict[str, str] = field(repr=False)
    versions: Versions = field(default_factory=Versions)


@contextlib.contextmanager
def place_workers(location: Location, cluster: str, count: int) -> Iterator[list[WorkerPlace]]:
    """Yield where workers of an environment listen; their actors end with the block."""
    variables = {"WANDER_HUB": os.environ["WANDER_HUB"]} if "WANDER_HUB" in os.environ else {}
    job = _Job(location.exact_name, secrets.token_hex(32), variables)
    with connected(cluster) as ray, contextlib.ExitStack() as stack:
        # Each process of a training run has this number for itself.
        number = count * int(os.environ.get("WORLD_SIZE", "1"))
        if number > (there := int(ray.cluster_resources().get("CPU", 0))):
            raise UsageError(
                f"the cluster at `ray://{cluster}` has {there} processors, too few for {number} workers",
                hint="ask for fewer, or add nodes: `ray start --address ...`",
            )
        kind = ray.remote(RayWorker).options(num_cpus=1, max_restarts=-1, max_task_retries=-1)
        places: list[WorkerPlace] = []
        for _ in range(count):
            actor = kind.remote(job)
            stack.callback(ray.kill, actor)
            places.append(_ActorPlace(actor, job.token))
        yield places


class _ActorPlace:
    """The address of an actor's listener."""

    def __init__(self, actor: Any, token: str) -> None:
        self._actor, self._token = actor, token

    async def find(self) -> WorkerAddress:
        """Return its address, once the actor is there; raises `LoadError`."""
        from wander.errors import LoadError, WorkerUnreachable
        from wander.worker.remote.address import WorkerAddress

        try:
            asked = asyncio.wrap_future(self._actor.listen.remote().future())
            async with asyncio.timeout(_START_SECONDS):
                found = await asked
        except TimeoutError as error:
            raise WorkerUnreachable(
                f"Ray has started no worker within {_START_SECONDS:g} s",
                hint="see with `ray status` whether a processor is free",
            ) from error
        except Exception as error:  # Ray raises it as such where the cluster is gone
            raise WorkerUnreachable(
                f"a worker failed on Ray: {str(error).splitlines()[0]}",
                hint="`ray status` shows what there is of the cluster; all nodes need `wander-ray`",
            ) from error
        if isinstance(found, NodeError):
            raise LoadError(found.message, hint=found.hint)
        return WorkerAddress.parse(found, self._token)


class RayWorker:
    """An actor: keeps a listener for one worker on its node, in the environment's own Python."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._process: subprocess.Popen[str] | None = None
        self._lifeline = -1
        """While this is open, the listener lives."""
        self._address = ""

    def listen(self) -> str | NodeError:
        """Return the listener's address. Restart the listener if it has exited."""
        try:
            if self._process is None or self._process.poll() is not None:
                self._job.versions.require()
                os.environ.update(self._job.variables)
                self._address = self._start()
        except Exception as error:  # noqa: BLE001 - returned, and raised by the driver
            return NodeError.of(error)
        return self._address

    def _start(self) -> str:
        import ray
        from wander_client.environments.location import default_log, locate

        context = Invocation(CommonOptions(mode="quiet"), Output("quiet"))
        location = locate(context, self._job.environment)
        host = ray.util.get_node_ip_address()
        theirs, ours = os.pipe()
        with tempfile.TemporaryDirectory(prefix="wander-token-") as place:
            token = Path(place, "token")
            token.touch(0o600)
            token.write_text(self._job.token)
            words = [
                *(str(location.python), "-P", "-m", "wander.worker", "--lifeline", str(theirs)),
                *("--listen", f"[{host}]:0" if ":" in host else f"{host}:0", "--token-file", str(token)),
                *("--environment", location.target, "--workers", "1"),
                *("--log", str(default_log(context, location).expanduser().resolve())),
            ]
            self._process = subprocess.Popen(  # noqa: S603 - no shell takes part
                words,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=(theirs,),
                start_new_session=True,
            )
            os.close(theirs)
            if self._lifeline >= 0:
                os.close(self._lifeline)
            self._lifeline = ours
            said, stream = [], self._process.stderr
            assert stream is not None
            for line in stream:
                said.append(line.strip())
                if line.startswith(_LISTENING):
                    # Read the rest of its output, so that the pipe does not fill up.
                    threading.Thread(target=lambda: [None for _ in stream], daemon=True).start()
                    return line.removeprefix(_LISTENING).strip()
        raise ClientError(f"the worker on `{host}` ended: {' '.join(said)}")
