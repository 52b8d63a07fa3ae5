"""A Ray cluster: how this process reaches one, and what its nodes must have in common with the driver.

What goes wrong on a node comes back as plain values: exceptions of ours hold more than pickle carries.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from wander.version import __version__

from wander_client.errors import ClientError, LoginRequired, NotFound, Unavailable, UsageError
from wander_client.failures import explain

_CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Problem:
    """What went wrong on a node."""

    message: str
    hint: str | None
    code: str
    detail: str | None
    status: int
    run: str = ""
    """The evaluation that it concerns; empty where that is all of it."""

    @classmethod
    def of(cls, error: BaseException, run: str = "") -> Problem:
        """Return an exception as plain values."""
        told = explain(error)
        return cls(str(told), told.hint, told.code, told.detail, told.status, run)

    def raised(self) -> ClientError:
        """Return it as an error of the driver's."""
        kinds = {kind.status: kind for kind in (UsageError, NotFound, LoginRequired, Unavailable)}
        kind = kinds.get(self.status, ClientError)
        return kind(self.message, hint=self.hint, code=self.code, detail=self.detail)


@dataclass(frozen=True)
class Versions:
    """What all nodes have to have as the driver has it."""

    wander: str = __version__
    python: tuple[int, int] = field(default_factory=lambda: sys.version_info[:2])

    def require(self) -> None:
        """Raise `ClientError` on a node that is not like the driver."""
        if self != Versions():
            there = f"wander {self.wander} on Python {'.'.join(map(str, self.python))}"
            raise ClientError(
                f"node `{socket.gethostname()}` has wander {__version__} on Python {sys.version_info[0]}."
                f"{sys.version_info[1]}, and the driver {there}",
                hint="install the same `wander-client[ray]` on all nodes",
                code="versions_differ",
            )


class _Connection:
    """The one connection of this process, for whoever uses it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._ray: Any = None
        self._wanted: str | None = None
        self._stack = contextlib.ExitStack()

    def join(self, wanted: str | None) -> Any:
        """Return Ray, connected."""
        with self._lock:
            if self._users and wanted != self._wanted:
                raise UsageError(
                    f"this process uses the cluster at `{self._wanted}` already, not `{wanted}`",
                    hint="name one cluster alone",
                )
            if not self._users:
                with contextlib.ExitStack() as stack:
                    self._ray, self._wanted = self._open(wanted, stack), wanted
                    self._stack = stack.pop_all()
            self._users += 1
            return self._ray

    def leave(self) -> None:
        """Disconnect after the last one."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._stack.close()

    def _open(self, wanted: str | None, stack: contextlib.ExitStack) -> Any:
        try:
            import ray
            import ray.util.scheduling_strategies
        except ImportError as error:
            raise UsageError(
                "a cluster needs Ray",
                hint="install it: `pip install 'wander-client[ray]'`",
                code="missing_extra",
            ) from error
        if wanted and wanted not in ("auto", "local"):
            _require_reachable(wanted)
        # What Ray prints, also later, is no data.
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        if not ray.is_initialized():
            try:
                ray.init(
                    address=wanted,
                    namespace="wander",
                    log_to_driver=False,
                    logging_level="ERROR",
                    **({} if wanted and wanted != "local" else {"include_dashboard": False}),
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise _cannot_connect(wanted, error) from error
            stack.callback(ray.shutdown)
        return ray


_CONNECTION = _Connection()


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yield Ray, connected to the cluster at `HOST:PORT` or `auto`; what it prints goes to standard error.

    None takes `RAY_ADDRESS`, or starts Ray on this machine, which `local` always does.
    """
    ray = _CONNECTION.join(address or os.environ.get("RAY_ADDRESS"))
    try:
        yield ray
    finally:
        _CONNECTION.leave()


def _require_reachable(address: str) -> None:
    """Raise `Unavailable` where nobody listens: Ray itself would try for a long time."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"`{address}` is no address of Ray", hint="write `HOST:6379`, or `auto`")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise Unavailable(
            f"no Ray cluster answers at `{address}`: {error.strerror or error}",
            hint="start one with `ray start --head --port 6379`, and name its address; `ray status` shows it",
            code="ray_unavailable",
        ) from error


def _cannot_connect(address: str | None, error: Exception) -> ClientError:
    if "ersion mismatch" in str(error):
        return ClientError(
            f"the cluster at `{address}` runs another version of Ray or Python",
            hint="install the same Ray and Python here and on all nodes",
            detail=str(error),
            code="versions_differ",
        )
    hint = "`ray status` shows whether a cluster runs; `ray start --head` starts one"
    if address and "RAY_AUTH_MODE" not in os.environ:
        hint += "; if it asks for a token, as `ray start` says, set `RAY_AUTH_MODE=token`"
    return Unavailable(
        f"cannot use Ray at `{address or 'this machine'}`: {str(error).splitlines()[0]}",
        hint=hint,
        code="ray_unavailable",
    )
