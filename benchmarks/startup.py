"""Measures the start time of commands compared with `wander --help` and bare Python, as medians and ratios of
one run.

The commands are started in turn, round after round, so that other load on the machine affects all of them
equally. Each command prints its own help, which loads everything that it needs before its work. `env list`
and `runs list` also do their whole work, on empty folders. The ratio is that of processor seconds, which
barely changes on a busy machine. The wall time is shown next to it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LINES = (
    ("new", "--help"),
    ("check", "--help"),
    ("publish", "--help"),
    ("search", "--help"),
    ("install", "--help"),
    ("eval", "--help"),
    ("view", "--help"),
    ("post", "--help"),
    ("leaderboard", "--help"),
    ("login", "--help"),
    ("runs", "--help"),
    ("runs", "list"),
    ("env", "list"),
)
BASE = ("--help",)


def measure(command: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """Run a command once, and return its processor and wall seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environ, cwd=environ["HOME"], capture_output=True, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    wander = str(Path(sys.executable).parent / "wander")
    commands = {"python -c pass": [sys.executable, "-c", "pass"]}
    commands |= {" ".join(("wander", *line)): [wander, *line] for line in (BASE, *LINES)}
    with tempfile.TemporaryDirectory() as home:
        # A typical user's environment: folders are found from the home, and compiled modules are cached.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDER_", "XDG_"))}
        environ = {**kept, "HOME": home, "PYTHONDONTWRITEBYTECODE": ""}
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for turn in range(rounds + 1):
            for name, command in commands.items():
                seconds = measure(command, environ)
                if turn:  # the first round fills the caches
                    taken[name].append(seconds)
    middle = {
        name: [statistics.median(column) for column in zip(*measurements, strict=True)]
        for name, measurements in taken.items()
    }
    base = middle["wander --help"]
    print("| command | processor ms | wall ms | times `wander --help` |\n|---|---:|---:|---:|")
    for name, (processor, wall) in middle.items():
        print(f"| `{name}` | {1000 * processor:.0f} | {1000 * wall:.0f} | {processor / base[0]:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
