"""A folder with its own hub, for commands that are run as a user would type them.

The demo and the experiments work in such folders. `WANDER_*` variables of the caller are not passed on.
Downloaded models stay in the platform's cache folder (or `WANDER_CACHE_DIR`).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent


GRACE = 75.0
"""Seconds that a stopped command gets to finish its step and save a checkpoint."""


class StepFailed(Exception):
    """A step failed. The message says which one, and how."""


class SliceEnded(Exception):
    """The time of this slice is over. Everything done so far is saved."""


class Workplace:
    """The folder, its hub, the variables of its commands, and the duration of each step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub_file = folder / "hub.json"
        """Port and process id of the hub."""
        self.times: list[tuple[str, float]] = []
        self.is_stopping = False
        self._running: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.hub = f"http://127.0.0.1:{self._port()}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WANDER_")},
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "WANDER_HUB": self.hub,
            "WANDER_HUB_DATA": str(folder / "hub"),
            "WANDER_CONFIG_DIR": str(folder / "config"),
            "WANDER_DATA_DIR": str(folder / "data"),
            "WANDER_STATE_DIR": str(folder / "state"),
        }
        if cache := os.environ.get("WANDER_CACHE_DIR"):
            self.environment["WANDER_CACHE_DIR"] = cache

    def _port(self) -> int:
        """Return the port of the hub that ran here before, or a free one."""
        if self.hub_file.exists():
            return int(json.loads(self.hub_file.read_text())["port"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print the title of a step, and afterwards its duration."""
        print(f"\n== {len(self.times) + 1}. {title}", flush=True)
        began = time.monotonic()
        yield
        self.times.append((title, time.monotonic() - began))
        print(f"   ({self.times[-1][1]:.0f} s)", flush=True)

    def type(self, line: str, **options: Any) -> str:
        """Print a command line, run it in the folder, and return its standard output."""
        if self.is_stopping:
            raise SliceEnded(f"before `{line}`")
        print(f"$ {line}", flush=True)
        process_options: dict[str, Any] = {
            "cwd": self.folder,
            "env": self.environment,
            "stdout": subprocess.PIPE,
        }
        with subprocess.Popen(shlex.split(line), **process_options, text=True, **options) as process:
            self._running = process
            if self.is_stopping:  # requested after the command started
                self.stop()
            output, _ = process.communicate()
        self._running = None
        print("".join(f"  {row}\n" for row in output.splitlines()), end="", flush=True)
        if process.returncode and self.is_stopping:
            raise SliceEnded(f"in `{line}`")
        if process.returncode:
            raise StepFailed(f"`{line}` exited with status {process.returncode}")
        return output

    def stop(self) -> None:
        """Make the running command save its state and exit, and start no other command."""
        self.is_stopping = True
        if (process := self._running) is None:
            return
        process.terminate()
        killer = threading.Timer(GRACE, process.kill)
        killer.daemon = True
        killer.start()

    def ask(self, path: str) -> Any:
        """Return an answer of the hub's API."""
        with urllib.request.urlopen(f"{self.hub}/api/v1/{path}", timeout=30) as answer:  # noqa: S310 - our own hub
            return json.load(answer)

    def start_hub(self) -> None:
        """Start the hub in the background, and wait until it answers."""
        port = int(self.hub.rpartition(":")[2])
        line = f"wander-hub serve --port {port} --token-file token --no-access-log"
        print(f"$ {line} &", flush=True)
        with (self.folder / "hub.log").open("wb") as log:
            process = subprocess.Popen(
                shlex.split(line),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.hub_file.write_text(json.dumps({"pid": process.pid, "port": port}))
        for _ in range(3000):
            if process.poll() is not None:
                raise StepFailed(f"the hub stopped:\n{(self.folder / 'hub.log').read_text()}")
            try:
                with urllib.request.urlopen(f"{self.hub}/health", timeout=5):  # noqa: S310 - our own hub
                    break
            except OSError:  # refused, or slow to answer on a busy machine
                time.sleep(0.1)
        else:
            self.stop_hub()
            raise StepFailed(f"the hub does not respond at {self.hub}")
        self.environment["WANDER_TOKEN"] = (self.folder / "token").read_text().strip()
        print(f"  {self.hub} answers; data in {self.folder / 'hub'}")

    def hub_process(self) -> int | None:
        """Return the process id of the hub that was started here, if it still runs."""
        if not self.hub_file.exists():
            return None
        pid = int(json.loads(self.hub_file.read_text())["pid"])
        listed = subprocess.run(
            ["ps", "-ww", "-p", str(pid), "-o", "args="], capture_output=True, text=True
        ).stdout
        return pid if "wander-hub" in listed else None

    def stop_hub(self) -> None:
        """Stop the hub, and wait until it has exited."""
        pid = self.hub_process()
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        for _ in range(100):
            time.sleep(0.1)
            state = subprocess.run(
                ["ps", "-p", str(pid), "-o", "state="], capture_output=True, text=True
            ).stdout
            if not state.strip() or state.strip().startswith("Z"):
                return
