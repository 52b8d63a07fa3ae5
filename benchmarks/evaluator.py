"""Compares Wander's evaluator with a bare aiohttp loop and with verifiers 0.1.14 and 0.3.1, its last classic
release.

    python benchmarks/evaluator.py            everything (about 40 minutes on 2 quiet cores)
    python benchmarks/evaluator.py --quick    fewer rollouts, one repetition, no peers, nothing written

It measures rollouts per second at several concurrencies with one turn and with five, the memory at 2,000
rollouts, and the cost of importing. Every measurement is a new process. The rollouts are played against one
instant endpoint (a separate process on loopback). Repetitions are interleaved, so that a slower machine
affects all contenders. The results are medians, of figures over repetitions and of ratios within each.
Absolute figures depend on the machine, so read the ratios. The peers are installed into their own virtual
environments in the user's cache folder. If that fails, they are left out with a message. They play fewer
rollouts because they are much slower. Opening connections is still a smaller part of their time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import instant_endpoint
from peers import peer_environment

HERE = Path(__file__).parent
CONTENDERS = HERE / "evaluator_contenders"
RESULTS = HERE / "results"
PEERS = ("verifiers 0.1.14", "verifiers 0.3.1")
BASELINE = "bare aiohttp"
MEMORY_ROLLOUTS, MEMORY_CONCURRENCY = 2000, 256
IMPORTS = 5
"""Number of times that each import is timed per repetition."""
STATEMENTS = {
    "import {0}": "import {0}",
    "{0}: first environment class": "from {0} import Rubric, SingleTurnEnv",
}
MOST_OF_SEVERAL_TURNS = 256
"""Maximum concurrency of measured rollouts with several turns, because the peers take too long."""


@dataclass(frozen=True)
class Contender:
    """A row of the tables."""

    name: str
    script: str
    flags: tuple[str, ...] = ()
    peer: str | None = None


ROWS = [
    Contender(BASELINE, "bare_aiohttp.py"),
    Contender("wander", "wander_rollouts.py"),
    Contender("wander, saving", "wander_rollouts.py", ("--save",)),
    Contender("wander, worker", "wander_rollouts.py", ("--worker",)),
    Contender("wander, worker, saving", "wander_rollouts.py", ("--worker", "--save")),
    *(Contender(peer, "verifiers_rollouts.py", peer=peer) for peer in PEERS),
    *(Contender(f"{peer}, saving", "verifiers_rollouts.py", ("--save",), peer=peer) for peer in PEERS),
]


def main() -> int:
    given = arguments()
    found = {} if given.no_peer else {peer: peer_environment(peer.replace(" ", "==")) for peer in PEERS}
    pythons = {peer: folder / "bin" / "python" for peer, folder in found.items() if folder is not None}
    rows = [row for row in ROWS if row.peer is None or row.peer in pythons]
    report: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "rates": [],
        "memory": {},
        "imports": {},
    }
    text = ""
    with instant_endpoint.running() as url:
        for repetition in range(given.repetitions):
            report["repetitions"] = repetition + 1
            add_imports(report, pythons, 1 if given.quick else IMPORTS)
            for turns in given.turns:
                for concurrency in measured_at(given.concurrency, turns):
                    for row in rows:
                        add_rate(report, row, pythons, url, given.n, concurrency, turns)
            if repetition == 0:
                for row in rows[:2] if given.quick else rows:
                    add_memory(report, row, pythons, url, given.memory_n)
            text = markdown(report, rows, given)
            if not given.quick:
                RESULTS.mkdir(exist_ok=True)
                (RESULTS / "evaluator.json").write_text(json.dumps(report, indent=1) + "\n")
                (RESULTS / "evaluator.md").write_text(text)
    print(text)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--n", type=int, help="rollouts of one turn per measurement (default: 2048, with --quick 512)"
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[8, 32, 256, 1024])
    parser.add_argument("--turns", type=int, nargs="+", default=[1, 5], help="turns per rollout")
    parser.add_argument("--no-peer", action="store_true", help="leave out verifiers")
    parser.add_argument("--quick", action="store_true", help="few rollouts, once, no peers, nothing written")
    given = parser.parse_args()
    given.n = given.n or (512 if given.quick else 2048)
    given.memory_n = min(given.n, MEMORY_ROLLOUTS) if given.quick else MEMORY_ROLLOUTS
    if given.quick:
        given.repetitions, given.no_peer = 1, True
    return given


def measured_at(concurrencies: list[int], turns: int) -> list[int]:
    return [each for each in concurrencies if turns == 1 or each <= MOST_OF_SEVERAL_TURNS]


def add_rate(
    report: dict[str, Any],
    row: Contender,
    pythons: dict[str, Path],
    url: str,
    n: int,
    concurrency: int,
    turns: int,
) -> None:
    """Measure one contender again at one concurrency."""
    key = {"name": row.name, "concurrency": concurrency, "turns": turns}
    entry = next((each for each in report["rates"] if each.items() >= key.items()), None)
    if entry is None:
        entry = {**key, "runs": []}
        report["rates"].append(entry)
    run = one(row, pythons, url, rollouts(row, n // turns, concurrency, turns), concurrency, turns)
    entry["runs"].append(run)
    told(f"{report['repetitions']}  {turns} turns  c={concurrency:<5} {row.name:<26}{rate(run):>9.0f}/s")
    entry["rollouts_per_second"] = statistics.median(rate(run) for run in entry["runs"])
    entry["cpu_ms_per_rollout"] = statistics.median(
        1000 * run["cpu_seconds"] / run["rollouts"] for run in entry["runs"]
    )


def add_memory(
    report: dict[str, Any], row: Contender, pythons: dict[str, Path], url: str, rollouts: int
) -> None:
    """Measure the peak memory of a contender's processes for this number of rollouts."""
    run = one(row, pythons, url, rollouts, MEMORY_CONCURRENCY, 1)
    worker = run["child_megabytes"] if "--worker" in row.flags else None
    report["memory"][row.name] = {"rollouts": rollouts, "caller": run["peak_megabytes"], "worker": worker}
    told(f"memory  {row.name:<26}{run['peak_megabytes']:>9.0f} MB")


def add_imports(report: dict[str, Any], pythons: dict[str, Path], times: int) -> None:
    """Measure the time to import each library, minus the start of the interpreter."""
    names = {"wander": sys.executable, **{peer: str(python) for peer, python in pythons.items()}}
    bare = statistics.median(started(sys.executable, "pass") for _ in range(times))
    for title, form in STATEMENTS.items():
        for name, python in names.items():
            statement = form.format(name.split()[0])
            started(python, statement)  # bytecode and disk cache
            seconds = statistics.median(started(python, statement) for _ in range(times)) - bare
            count = subprocess.run(
                [python, "-c", f"{statement}; import sys; print(len(sys.modules))"],
                capture_output=True,
                check=True,
            )
            entry = report["imports"].setdefault(
                title.format(name), {"like": title.format("wander"), "seconds": []}
            )
            entry["modules"] = int(count.stdout.split()[-1])
            entry["seconds"].append(seconds)
            told(f"{report['repetitions']}  {title.format(name):<45}{1000 * seconds:>7.0f} ms")


def started(python: str, statement: str) -> float:
    began = time.perf_counter()
    subprocess.run([python, "-c", statement], check=True, capture_output=True)
    return time.perf_counter() - began


def told(line: str) -> None:
    print(line, file=sys.stderr)


def rate(run: dict[str, Any]) -> float:
    per_second: float = run["rollouts"] / run["seconds"]
    return per_second


def rollouts(row: Contender, n: int, concurrency: int, turns: int) -> int:
    """Return enough rollouts that most of the time is spent at full concurrency."""
    if row.peer is not None:
        return max(n // 2, (2 if turns == 1 else 1) * concurrency)
    return max(n, (8 if turns == 1 else 2) * concurrency) if n * turns >= 500 else n


def one(
    row: Contender, pythons: dict[str, Path], url: str, n: int, concurrency: int, turns: int
) -> dict[str, Any]:
    """Run one contender once."""
    python = sys.executable if row.peer is None else str(pythons[row.peer])
    command = [python, str(CONTENDERS / row.script), "--url", url, "--n", str(n), *row.flags]
    command += ["--concurrency", str(concurrency), "--turns", str(turns)]
    load = os.getloadavg()[0]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{row.name} exited with status {done.returncode}:\n{done.stderr[-3000:]}")
    run: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return run | {"load_before": load}


def machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def markdown(report: dict[str, Any], rows: list[Contender], given: argparse.Namespace) -> str:
    """Return every table."""
    loads = [run["load_before"] for entry in report["rates"] for run in entry["runs"]]
    machine = report["machine"]
    parts = [
        f"{report['measured_at'][:10]}: {machine['cores']} cores, {machine['system']} {machine['machine']}, "
        f"Python {machine['python']}, load before a measurement {min(loads):.1f} to {max(loads):.1f}, "
        f"repetitions: {report['repetitions']}\n"
    ]
    for turns in given.turns:
        parts.append(rate_tables(report, rows, measured_at(given.concurrency, turns), turns))
    return "\n".join([*parts, memory_table(report), import_table(report)])


def rate_tables(report: dict[str, Any], rows: list[Contender], concurrencies: list[int], turns: int) -> str:
    """Return the table of rollouts per second, and those of the ratios to the peers and to the bare loop."""
    entries = {
        (entry["name"], entry["concurrency"]): entry for entry in report["rates"] if entry["turns"] == turns
    }
    ours = [row.name for row in rows if row.name.startswith("wander")]
    names = [row.name for row in rows]

    def table(title: str, cells: dict[str, list[str]]) -> list[str]:
        heads = " | ".join(f"c={concurrency}" for concurrency in concurrencies)
        lines = [f"| {title} | {heads} |", "|---|" + "---:|" * len(concurrencies)]
        return [*lines, *(f"| {name} | {' | '.join(values)} |" for name, values in cells.items()), ""]

    def each(name: str, value: Any) -> list[str]:
        return [value(name, concurrency) for concurrency in concurrencies]

    def per_second(name: str, concurrency: int) -> str:
        return f"{entries[name, concurrency]['rollouts_per_second']:,.0f}"

    def processor(name: str, concurrency: int) -> str:
        return f"{entries[name, concurrency]['cpu_ms_per_rollout']:.2f}"

    title = f"{turns} turn{'s' if turns > 1 else ''}: rollouts a second"
    lines = table(title, {name: each(name, per_second) for name in names})
    for other in (*PEERS, BASELINE):
        if other not in names:
            continue
        title = f"share of {other}" if other == BASELINE else f"times {other}"
        cells = {}
        for name in ours:
            same = f"{other}, saving" if name.endswith("saving") and other != BASELINE else other
            cells[name] = [f"{ratio(entries, name, same, c):.2f}" for c in concurrencies]
        lines += table(title, cells)
    title = "CPU milliseconds a rollout, calling process only"
    lines += table(title, {name: each(name, processor) for name in names})
    return "\n".join(lines)


def ratio(entries: dict[tuple[str, int], dict[str, Any]], name: str, other: str, concurrency: int) -> float:
    """Return the median of the ratios within each repetition, which are measured within minutes."""
    ours, theirs = ([rate(run) for run in entries[which, concurrency]["runs"]] for which in (name, other))
    return statistics.median(one / another for one, another in zip(ours, theirs, strict=True))


def memory_table(report: dict[str, Any]) -> str:
    memory = report["memory"]
    count = max(entry["rollouts"] for entry in memory.values())
    lines = [
        f"| most memory at {count:,} rollouts, c={MEMORY_CONCURRENCY} | MB | worker, MB |",
        "|---|---:|---:|",
    ]
    for name, entry in memory.items():
        worker = "" if entry["worker"] is None else f"{entry['worker']:.0f}"
        lines.append(f"| {name} | {entry['caller']:.0f} | {worker} |")
    return "\n".join([*lines, ""])


def import_table(report: dict[str, Any]) -> str:
    """Return the table of import costs. Ratios are those of the medians, because an import is short."""
    imports = report["imports"]
    medians = {name: statistics.median(entry["seconds"]) for name, entry in imports.items()}
    lines = ["| importing | seconds | times wander's | modules |", "|---|---:|---:|---:|"]
    for name, seconds in medians.items():
        times = f"{seconds / medians[imports[name]['like']]:.1f}"
        lines.append(f"| {name} | {seconds:.3f} | {times} | {imports[name]['modules']:,} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
