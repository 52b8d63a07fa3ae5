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
from time import monotonic
from typing import Any

from wander.version import __version__
from wander_client.errors import ClientError, LoginRequired, NotFound, Unavailable, UsageError
from wander_client.failures import explain

_CONNECT_SECONDS = 10.0
_HEAD_SECONDS = 35.0
"""Seconds without a response after which the head counts as lost. After a minute, Ray ends the process."""


@dataclass(frozen=True)
class NodeError:
    """An error on a node."""

    message: str
    hint: str | None
    code: str
    detail: str | None
    status: int
    run: str = ""
    """The evaluation that it concerns; empty where that is all of it."""

    @classmethod
    def of(cls, error: BaseException, run: str = "") -> NodeError:
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
    """The versions that must be the same on all nodes."""

    wander: str = __version__
    python: tuple[int, int] = field(default_factory=lambda: sys.version_info[:2])

    def require(self) -> None:
        """Raise `ClientError` on a node that is not like the driver."""
        if self != Versions():
            there = f"wander {self.wander} on Python {'.'.join(map(str, self.python))}"
            raise ClientError(
                f"node `{socket.gethostname()}` has wander {__version__} on Python {sys.version_info[0]}."
                f"{sys.version_info[1]}, and the driver {there}",
                hint="install the same `wander-ray` on all nodes",
                code="versions_differ",
            )


_LOCK = threading.Lock()
_USERS: list[str | None] = []
"""The address that each user of this process's one connection asked for; all are the same."""
_UNDO = contextlib.ExitStack()
"""Disconnects when the last user is gone."""


@contextlib.contextmanager
def connected(address: str, *, go_on: str = "resume the run") -> Iterator[Any]:
    """Yield Ray, connected to the cluster at `HOST:PORT` or `auto`; what it prints goes to standard error.

    An empty address takes `RAY_ADDRESS`, or starts Ray on this machine, which `local` always does. Raises
    `Unavailable` if the cluster is lost in the block, with a hint how to resume.
    """
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UsageError(
            "a cluster needs Ray", hint="install it: `pip install 'ray>=2.49'`", code="missing_extra"
        ) from error
    wanted = address or os.environ.get("RAY_ADDRESS")
    with _LOCK:
        if _USERS and wanted != _USERS[0]:
            raise UsageError(
                f"this process uses the cluster at `{_USERS[0]}` already, not `{wanted}`",
                hint="use one cluster per process",
            )
        if not _USERS:
            _connect(ray, wanted)
        _USERS.append(wanted)
    try:
        yield ray
    except ray.exceptions.RayError as error:
        hint = f"see with `ray status` whether it runs, then {go_on}; what was played is kept"
        raise failed(f"lost the cluster at `{wanted or 'this machine'}`", error, hint) from error
    finally:
        with _LOCK:
            _USERS.pop()
            if not _USERS:
                _UNDO.close()


def _connect(ray: Any, wanted: str | None) -> None:
    if wanted and wanted not in ("auto", "local"):
        _require_reachable(wanted)
    with contextlib.ExitStack() as stack:
        # Ray's own output, also later, must not mix with data on stdout.
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
        _UNDO.push(stack.pop_all())


def failed(what: str, error: Exception, hint: str, code: str = "ray_unavailable") -> Unavailable:
    """Return what Ray raised as an error of ours."""
    return Unavailable(f"{what}: {str(error).splitlines()[0]}", hint=hint, detail=str(error), code=code)


class Head:
    """The head of the connected cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._looked, self._seen = ray, monotonic(), 0.0

    def require(self) -> None:
        """Raise an error of Ray where nobody listens any more, for a while; looks now and then."""
        if monotonic() - self._looked < _CONNECT_SECONDS / 2:
            return
        try:
            _require_reachable(self._ray.get_runtime_context().gcs_address)
            self._seen = monotonic()
        except Unavailable as error:
            if self._seen and monotonic() - self._seen > _HEAD_SECONDS:
                raise self._ray.exceptions.RayError(str(error)) from error
        self._looked = monotonic()


def _require_reachable(address: str) -> None:
    """Raise `Unavailable` where nobody listens: Ray itself would try for a long time."""
    if address.startswith("ray://"):
        hint = "write `HOST:6379`, the address of the cluster's head, or `auto`"
        raise UsageError(f"`{address}` is an address of Ray Client, which Wander does not use", hint=hint)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"not a Ray address: `{address}`", hint="write `HOST:6379`, or `auto`")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise Unavailable(
            f"no Ray cluster responds at `{address}`: {error.strerror or error}",
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
    return failed(f"cannot use Ray at `{address or 'this machine'}`", error, hint)
