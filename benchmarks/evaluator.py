"""Rollouts a second of Wander's evaluator, beside a bare aiohttp loop and verifiers 0.1.14.

    python benchmarks/evaluator.py            the whole table (about 15 minutes)
    python benchmarks/evaluator.py --quick    fewer rollouts, one repetition, no peer

Every measurement is a fresh process against the same instant endpoint (a process of its own on loopback);
repetitions are interleaved, so that a machine that gets slower slows everybody; medians are reported, of
rates over repetitions and of ratios within each.
Absolute figures belong to the machine: read the ratios. verifiers is installed into a virtual environment of
its own under the user's cache folder, and left out, with a message, where that cannot be done. It plays fewer
rollouts, since it is so much slower; opening connections is still a smaller part of its time than of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import instant_endpoint

HERE = Path(__file__).parent
CONTENDERS = HERE / "evaluator_contenders"
RESULTS = HERE / "results"
PEER = "verifiers==0.1.14"
BASELINE = "bare aiohttp"


@dataclass(frozen=True)
class Contender:
    """One row of the table."""

    name: str
    script: str
    flags: tuple[str, ...] = ()
    peer: bool = False


ROWS = [
    Contender(BASELINE, "bare_aiohttp.py"),
    Contender("wander", "wander_rollouts.py"),
    Contender("wander, saving", "wander_rollouts.py", ("--save",)),
    Contender("wander, worker", "wander_rollouts.py", ("--worker",)),
    Contender("wander, worker, saving", "wander_rollouts.py", ("--worker", "--save")),
    Contender("verifiers 0.1.14", "verifiers_rollouts.py", peer=True),
    Contender("verifiers 0.1.14, saving", "verifiers_rollouts.py", ("--save",), peer=True),
]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, help="rollouts a measurement (default 2048, quick 512)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[8, 32, 256, 1024])
    parser.add_argument("--turns", type=int, default=1, help="turns a rollout (bare aiohttp: requests)")
    parser.add_argument("--no-peer", action="store_true", help="leave verifiers out")
    parser.add_argument("--quick", action="store_true", help="few rollouts, once, no peer, nothing written")
    given = parser.parse_args()
    given.n = given.n or (512 if given.quick else 2048)
    if given.quick:
        given.repetitions, given.no_peer = 1, True
    peer = None if given.no_peer else peer_python()
    rows = [row for row in ROWS if peer is not None or not row.peer]
    if given.turns > 1:
        rows = [row for row in rows if row.name != BASELINE]
    table = ""
    for repetition, measured in enumerate(measure(rows, given, peer), start=1):
        report = {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "turns": given.turns,
            "repetitions": repetition,
            "rows": measured,
        }
        table = markdown(report, given.concurrency)
        if not given.quick:
            name = "evaluator" if given.turns == 1 else f"evaluator_{given.turns}_turns"
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
            (RESULTS / f"{name}.md").write_text(table)
    print(table)
    return 0


def measure(
    rows: list[Contender], given: argparse.Namespace, peer: Path | None
) -> Iterator[list[dict[str, Any]]]:
    """Yield, after each repetition, one entry a (contender, concurrency) with all of its runs."""
    entries: dict[tuple[str, int], dict[str, Any]] = {
        (row.name, concurrency): {"name": row.name, "concurrency": concurrency, "runs": []}
        for row in rows
        for concurrency in given.concurrency
    }
    with instant_endpoint.running() as url:
        for repetition in range(given.repetitions):
            for concurrency in given.concurrency:
                for row in rows:
                    python = str(peer) if row.peer else sys.executable
                    run = one(python, row, url, rollouts(row, given.n, concurrency), concurrency, given.turns)
                    entries[row.name, concurrency]["runs"].append(run)
                    rate = run["rollouts"] / run["seconds"]
                    print(
                        f"{repetition + 1}/{given.repetitions}  c={concurrency:<5} {row.name:<26}"
                        f"{rate:>9.0f}/s",
                        file=sys.stderr,
                    )
            for entry in entries.values():
                add_medians(entry)
            yield list(entries.values())


def add_medians(entry: dict[str, Any]) -> None:
    runs = entry["runs"]
    entry["rollouts_per_second"] = statistics.median(run["rollouts"] / run["seconds"] for run in runs)
    entry["cpu_ms_per_rollout"] = statistics.median(
        1000 * run["cpu_seconds"] / run["rollouts"] for run in runs
    )
    entry["peak_megabytes"] = max(run["peak_megabytes"] for run in runs)


def rollouts(row: Contender, n: int, concurrency: int) -> int:
    """Enough rollouts that most of the time goes by at full concurrency."""
    if row.peer:
        return max(n // 2, 2 * concurrency)
    return max(n, 8 * concurrency) if n >= 512 else n


def one(python: str, row: Contender, url: str, n: int, concurrency: int, turns: int) -> dict[str, Any]:
    """Run one contender once."""
    command = [python, str(CONTENDERS / row.script), "--url", url, "--n", str(n), *row.flags]
    command += ["--concurrency", str(concurrency), "--turns", str(turns)]
    load = os.getloadavg()[0]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode:
        raise SystemExit(f"{row.name} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    run: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return run | {"load_before": load}


def peer_python() -> Path | None:
    """Return the interpreter of a virtual environment that holds the peer, made where it is not there yet."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wander" / "benchmarks"
    folder = base / PEER.replace("==", "-")
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else "uv"
    print(f"installing {PEER} into {folder} (once)", file=sys.stderr)
    try:
        for command in (
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", str(python), PEER],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        print(f"left out: {PEER} cannot be installed here: {str(said).strip()[-500:]}", file=sys.stderr)
        return None
    (folder / "complete").touch()
    return python


def machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def markdown(report: dict[str, Any], concurrencies: list[int]) -> str:
    """Return rollouts a second, then the ratios to the peer and to the bare loop."""
    rates = {(row["name"], row["concurrency"]): row["rollouts_per_second"] for row in report["rows"]}
    names = list(dict.fromkeys(row["name"] for row in report["rows"]))
    heads = " | ".join(f"c={concurrency}" for concurrency in concurrencies)
    rule = "|---|" + "---:|" * len(concurrencies)
    lines = [f"| rollouts a second | {heads} |", rule]
    for name in names:
        cells = " | ".join(f"{rates[name, concurrency]:,.0f}" for concurrency in concurrencies)
        lines.append(f"| {name} | {cells} |")
    for title, pairs in (
        ("times verifiers 0.1.14", against_peer(names)),
        ("share of bare aiohttp", [(name, BASELINE) for name in names if name.startswith("wander")]),
    ):
        if not pairs or any(other not in names for _, other in pairs):
            continue
        lines += ["", f"| {title} | {heads} |", rule]
        for name, other in pairs:
            cells = " | ".join(f"{ratio(report, name, other, c):.2f}" for c in concurrencies)
            lines.append(f"| {name} | {cells} |")
    cpu = {(row["name"], row["concurrency"]): row["cpu_ms_per_rollout"] for row in report["rows"]}
    lines += ["", f"| CPU milliseconds a rollout, calling process alone | {heads} |", rule]
    for name in names:
        cells = " | ".join(f"{cpu[name, concurrency]:.2f}" for concurrency in concurrencies)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


def ratio(report: dict[str, Any], name: str, other: str, concurrency: int) -> float:
    """Return the median of the ratios within each repetition: the two were measured seconds apart."""
    ours, theirs = (
        [run["rollouts"] / run["seconds"] for run in row["runs"]]
        for wanted in (name, other)
        for row in report["rows"]
        if (row["name"], row["concurrency"]) == (wanted, concurrency)
    )
    return statistics.median(one / another for one, another in zip(ours, theirs, strict=True))


def against_peer(names: list[str]) -> list[tuple[str, str]]:
    """Pair each of our rows with the peer's row that does the same work."""
    suffix = {name: ", saving" if name.endswith("saving") else "" for name in names}
    return [(name, f"verifiers 0.1.14{suffix[name]}") for name in names if name.startswith("wander")]


if __name__ == "__main__":
    sys.exit(main())
