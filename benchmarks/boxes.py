"""Measures what a box costs: its start, a command, eight boxes at the same time, and Podman next to `podman
run`.

    .venv/bin/python benchmarks/boxes.py [IMAGE]

Without an image of Podman, only bubblewrap is measured. All modes take turns in one run, so that a busy
machine slows each of them.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable

from wander.boxes.base import BoxBackend, BoxLimits, BoxSpec
from wander.boxes.bubblewrap import BubblewrapBackend
from wander.boxes.containers import ContainerBackend

LIMITS = BoxLimits(memory_mb=256, disk_mb=64, processes=64)
ULIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
COMMANDS = 20


async def measured(backend: BoxBackend, spec: BoxSpec) -> dict[str, float]:
    """Return milliseconds to start a box, for a command, for a final state, and to stop the box."""
    begun = time.perf_counter()
    box = await backend.start(spec)
    started = time.perf_counter()
    for _ in range(COMMANDS):
        await box.exec(["true"])
    commanded = time.perf_counter()
    await box.final_state()
    recorded = time.perf_counter()
    await box.stop()
    stopped = time.perf_counter()
    seconds = {
        "start": started - begun,
        "exec": (commanded - started) / COMMANDS,
        "state": recorded - commanded,
        "stop": stopped - recorded,
    }
    return {name: value * 1000 for name, value in seconds.items()}


async def eight(backend: BoxBackend, spec: BoxSpec) -> float:
    """Return milliseconds until eight boxes have started at the same time, run a command, and stopped."""

    async def one() -> None:
        box = await backend.start(spec)
        await box.exec("echo hello")
        await box.stop()

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(8)))
    return (time.perf_counter() - begun) * 1000


def bare(image: str) -> float:
    """Return milliseconds of a bare `podman run` of `true` without a network."""
    begun = time.perf_counter()
    words = [
        "podman",
        "run",
        "--rm",
        "--network=none",
        "--ulimit=nofile=1024:1024",
        "--ulimit=nproc=1024:1024",
    ]
    subprocess.run([*words, image, "true"], check=True)
    return (time.perf_counter() - begun) * 1000


async def main() -> None:
    """Measure alternately and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", nargs="?")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    modes: dict[str, tuple[BoxBackend, BoxSpec]] = {"bwrap": (BubblewrapBackend(), BoxSpec(limits=LIMITS))}
    if given.image is not None:
        modes["podman"] = (ContainerBackend("podman"), BoxSpec(image=given.image, limits=LIMITS))
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in modes}
    commands: dict[str, Callable[[], Awaitable[float]]] = {}
    for name, (backend, spec) in modes.items():
        commands[f"{name}, 8 at a time"] = lambda backend=backend, spec=spec: eight(backend, spec)
        await measured(backend, spec)
    if given.image is not None:
        commands["bare podman run"] = lambda: asyncio.to_thread(bare, given.image)
    totals: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(given.rounds):
        for name, (backend, spec) in modes.items():
            rows[name].append(await measured(backend, spec))
        for name, command in commands.items():
            totals[name].append(await command())
    for name, measurements in rows.items():
        for step in measurements[0]:
            values = [measurement[step] for measurement in measurements]
            print(f"{name + ' ' + step:<24}{statistics.median(values):>10.1f} ms")
    for name, times in totals.items():
        print(f"{name:<24}{statistics.median(times):>10.1f} ms")


if __name__ == "__main__":
    asyncio.run(main())
