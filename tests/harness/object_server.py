"""A real S3-compatible server for one test session; it checks all signatures, also of presigned URLs."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from live_hub import free_port

KEYS = ("wander-test-key", "wander-test-secret")
_SECONDS = 60
_STARTS = 5
"""Another process may take a free port before the server does."""


class ObjectServer:
    """A server whose buckets are folders."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self._folder = folder
        self._numbers = itertools.count()

    @property
    def variables(self) -> dict[str, str]:
        """The AWS environment variables for programs that use the server."""
        key, secret = KEYS
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
        }

    def bucket(self) -> str:
        """Make an empty bucket and return the URL of a folder in it, for `WANDER_HUB_STORAGE_URL`."""
        name = f"bucket-{next(self._numbers)}"
        (self._folder / name).mkdir()
        return f"s3://{name}/hub"


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Start a server on loopback with a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="wander-s3-"))
    try:
        process, address = _started(folder)
        try:
            yield ObjectServer(address, folder)
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _started(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    for _ in range(_STARTS):
        port = free_port()
        command = [sys.executable, "-m", "nanio", "serve", "--data-dir", str(folder), "--port", str(port)]
        command += ["--host", "127.0.0.1", "--no-access-log"]
        keys = dict(zip(("NANIO_ACCESS_KEY", "NANIO_SECRET_KEY"), KEYS, strict=True))
        process = subprocess.Popen(
            command, env=os.environ | keys, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        address = f"http://127.0.0.1:{port}"
        if _answers(process, address):
            return process, address
        process.kill()
        process.wait()
    raise RuntimeError("the object server does not start")


def _answers(process: subprocess.Popen[bytes], address: str) -> bool:
    deadline = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if "<Error>" in httpx.get(address, timeout=5).text:
                return process.poll() is None
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    return False


WANTED = os.environ.get("WANDER_TEST_STORAGE", "folder")
"""Where the hub's tests keep objects: folder or s3."""
