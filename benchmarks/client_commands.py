"""Compares the cost of `wander install`, `eval` and `post` in two checkouts: processor and wall seconds.

    python benchmarks/client_commands.py BEFORE AFTER [--rounds 5] [--examples 200]

Each checkout (a folder after `make setup`) gets its own hub with one published environment. Rounds
alternate between the checkouts. An endpoint that answers immediately replaces the model, so that only the
client and its worker are measured. Commands of AFTER also run with `--no-sandbox`.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from instant_endpoint import running

ENVIRONMENT = "admin/reverse-text"


class Checkout:
    """A checkout with its hub and its user."""

    def __init__(self, root: Path, home: Path) -> None:
        self.bin = root / ".venv/bin"
        self.root, self.home = root, home
        home.mkdir()
        self.environ = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(home),
            "WANDER_HUB_VERIFICATION": "off",
            **{name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_"))},
        }
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        hub = ["serve", "--port", port, "--data", str(home / "hub"), "--token-file", str(home / "token")]
        with (home / "log").open("w") as log:
            self.hub = subprocess.Popen([str(self.bin / "wander-hub"), *hub], env=self.environ, stderr=log)
        self.environ["WANDER_HUB"] = f"http://127.0.0.1:{port}"
        self.run("login", "--token-file", str(home / "token"), "--wait", "60")
        self.run("publish", str(root / "environments/reverse_text"))

    def run(self, *words: str) -> tuple[float, float]:
        """Run a command of the client.

        Returns processor and wall seconds, including those of its children.
        """
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [str(self.bin / "wander"), *words, "--no-progress", "--quiet"]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, cwd=self.home)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=200)
    given = parser.parse_args()
    measured: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, running() as address:
        pair = {
            name: Checkout(root.resolve(), Path(folder) / name)
            for name, root in (("before", given.before), ("after", given.after))
        }
        try:
            for number in range(given.rounds + 1):
                for name, checkout in pair.items():
                    play = ("eval", ENVIRONMENT, "-m", "instant", "-b", address, "-n", str(given.examples))
                    lines = [
                        ("install", ("install", "--force", ENVIRONMENT)),
                        ("eval", (*play, "--out", "run")),
                        ("post", ("post", "run")),
                    ]
                    if name == "after":
                        lines.insert(2, ("eval --no-sandbox", (*play, "--no-sandbox", "--out", "outside")))
                    for label, words in lines:
                        seconds = checkout.run(*words)
                        if number:  # the first round fills caches
                            measured.setdefault(f"{name} {label}", []).append(seconds)
                    for left in ("run", "outside"):
                        shutil.rmtree(checkout.home / left, ignore_errors=True)
        finally:
            for checkout in pair.values():
                checkout.hub.terminate()
                checkout.hub.wait()
    print("| command | before, s of processor (wall) | after | ratio |\n|---|---:|---:|---:|")
    for label in ("install", "eval", "eval --no-sandbox", "post"):
        old, new = measured[f"before {label.split()[0]}"], measured[f"after {label}"]
        cells = [
            "{:.2f} ({:.2f})".format(*map(statistics.median, zip(*seconds, strict=True)))
            for seconds in (old, new)
        ]
        ratio = statistics.median(b[0] / a[0] for a, b in zip(old, new, strict=True))
        print(f"| `wander {label}` | {' | '.join(cells)} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
