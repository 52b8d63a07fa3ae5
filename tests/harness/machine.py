"""A user's machine: a private home, the installed commands, an index of packages, and one hub to talk to."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from live_hub import BIN, LiveHub, clean_environment, run_program

SECONDS = 200


@dataclass
class Machine:
    """A machine for commands; two machines share only the hub."""

    home: Path
    hub: LiveHub
    mirror: str
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of its commands."""
        return {
            **clean_environment(),
            "HOME": str(self.home),
            "WANDER_CONFIG_DIR": str(self.home / "config"),
            "WANDER_DATA_DIR": str(self.home / "data"),
            "WANDER_CACHE_DIR": str(self.home / "cache"),
            "WANDER_STATE_DIR": str(self.home / "state"),
            "WANDER_HUB": self.hub.url,
            "WANDER_TOKEN": self.hub.token,
            "UV_DEFAULT_INDEX": self.mirror,
            "PIP_INDEX_URL": self.mirror,
            "PIP_NO_CACHE_DIR": "1",
            **self.extra,
        }

    def command(self, name: str, *arguments: object) -> list[str]:
        """Return the command line of an installed command."""
        return [str(BIN / name), *map(str, arguments)]

    def run(
        self, name: str, *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run an installed command in the home folder, whatever its exit status."""
        return run_program(
            self.command(name, *arguments),
            env or self.environment,
            folder=cwd or self.home,
            timeout=SECONDS,
        )

    def start(self, name: str, *arguments: object) -> subprocess.Popen[str]:
        """Start an installed command without waiting for it."""
        return subprocess.Popen(
            self.command(name, *arguments),
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wander(self, *arguments: object) -> dict[str, Any]:
        """Run `wander ... --json`, require success, and return its data."""
        done = self.run("wander", *arguments, "--json")
        assert done.returncode == 0, f"wander {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}"
        data: dict[str, Any] = json.loads(done.stdout)["data"]
        return data

    def refused(self, status: int, *arguments: object, **options: Any) -> str:
        """Run `wander`, require this exit status, an error and a hint, and return its output."""
        done = self.run("wander", *arguments, **options)
        said = f"{done.stdout}{done.stderr}"
        assert done.returncode == status, f"exit status {done.returncode}, not {status}\n{said}"
        assert "error: " in done.stderr, said
        assert "hint: " in done.stderr, said
        assert "Traceback" not in said, said
        assert "this is a bug" not in said, said
        return done.stderr

    def fresh_venv(self, name: str) -> Path:
        """Make an empty virtual environment; return its Python."""
        folder = self.home / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        return folder / "bin" / "python"
