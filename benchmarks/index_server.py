"""Compares the package index with devpi, pypiserver, nginx and a bare ASGI application, in requests per
second.

    python benchmarks/index_server.py            the whole table (about 8 minutes)
    python benchmarks/index_server.py --quick    shorter measurements, no peers, nothing written

Needs `wrk`, and `nginx` for its rows (`apt-get install wrk nginx`). Every server has the same wheels on
loopback, with one process each. Measurements are interleaved and repeated. The results are medians, of ratios
within each repetition. Absolute figures depend on the machine, so read the ratios. devpi and pypiserver are
installed into virtual environments in the user's cache folder. If that fails, they are left out with a
message.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "index_contenders"))

import servers  # noqa: E402 - next to this file, like the applications that uvicorn loads
import wheels  # noqa: E402
from peers import peer_environment  # noqa: E402
from servers import JSON_V1, Server  # noqa: E402

RESULTS = HERE / "results"
CONNECTIONS = 16
FEW, MANY = "bench-pkg-010", "bench-many"
SCENES = ("page of 3 files", "page of 300 files", "conditional request", "wheel of 9 kB")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=2, help="seconds per measurement")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--environments", type=int, default=100_000, help="environments of the large hub")
    parser.add_argument("--quick", action="store_true", help="one second, once, no peers, nothing written")
    given = parser.parse_args()
    if given.quick:
        given.seconds, given.repetitions, given.environments = 1, 1, 10_000
    if shutil.which("wrk") is None:
        print("error: `wrk` is not installed\n\nhint: `apt-get install wrk nginx`", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="wander-bench-") as folder, ExitStack() as stack:
        report = measured(Path(folder), given, stack)
    table = markdown(report)
    print(table)
    if not given.quick:
        (RESULTS / "index_server.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / "index_server.md").write_text(table)
    return 0


def measured(work: Path, given: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    """Start every server, publish to the servers that accept uploads, and measure."""
    built = wheels.make_wheels(work / "wheels")
    timed = [one for one in built if one.name.startswith(("bench_pkg_00", "bench_pkg_01", "bench_many-"))]
    large = wheels.make_large(work / "large")
    wheels.make_static(work / "static", [*built, large])
    report: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load_before": os.getloadavg()[0],
        "published wheels": len(timed),
        "published": {},
    }
    data = work / "hub"
    data.mkdir()
    wanted = {} if given.quick else servers.PEERS
    peers = {name: peer_environment(requirement) for name, requirement in wanted.items()}
    with servers.wander(work, data, "publishing") as hub:
        hub.publish([*(one for one in built if one not in timed), large])
        report["published"]["wander"] = hub.publish(timed)
    running = [stack.enter_context(servers.uvicorn(work, work / "static", "bare", "bare ASGI"))]
    running.append(stack.enter_context(servers.uvicorn(work, work / "static", "app", "FastAPI")))
    nginxes = before_nginx(work, data, stack)
    running.append(stack.enter_context(servers.wander(work, data)))
    if peers.get("devpi"):
        devpi = stack.enter_context(servers.devpi(work, peers["devpi"]))
        report["published"]["devpi"] = devpi.publish(timed)
        devpi.wheel = servers.wheel_of_devpi(devpi)
        running.append(devpi)
    if peers.get("pypiserver"):
        running.append(stack.enter_context(servers.pypiserver(work, peers["pypiserver"], work / "wheels")))
    running += nginxes
    report["scenes"] = {scene: measure(scene, running, given) for scene in SCENES}
    report["large wheel"] = large_wheel(running, given)
    report["installs"] = installs(work, running, given.repetitions)
    report["growth"] = growth(work, data, given, stack)
    report["load_after"] = os.getloadavg()[0]
    return report


def before_nginx(work: Path, data: Path, stack: ExitStack) -> list[Server]:
    """Return nginx by itself, and nginx in front of hubs with the same data, or nothing without nginx."""
    if shutil.which("nginx") is None:
        print("without nginx: it is not installed", file=sys.stderr)
        return []
    found = [stack.enter_context(servers.static_nginx(work, work / "static"))]
    own = work / "hub-sent"
    shutil.copytree(data, own)
    hub = stack.enter_context(servers.wander(work, own, own.name, accel_prefix="/_objects/"))
    found.append(stack.enter_context(servers.nginx_before(work, hub, own, "wander, nginx")))
    return found


def measure(scene: str, running: list[Server], given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return requests a second of each server, and processor time a request."""
    samples: dict[str, list[tuple[float, float]]] = {}
    for _ in range(given.repetitions):
        for server in running:
            asked = request(scene, server)
            if asked is not None:
                samples.setdefault(server.name, []).append(load(server, *asked, given.seconds))
    baseline = [rate for rate, _ in samples.get("wander", [])]
    return {
        name: {
            "requests_per_second": statistics.median(rate for rate, _ in every),
            "processor_microseconds": statistics.median(cost for _, cost in every),
            "wander_times_this": statistics.median(
                ours / rate for ours, (rate, _) in zip(baseline, every, strict=True)
            ),
        }
        for name, every in samples.items()
    }


def request(scene: str, server: Server) -> tuple[str, dict[str, str]] | None:
    """Return address and headers of a scene, or None if a server does not support it."""
    headers = {"Accept": JSON_V1}
    if scene == "wheel of 9 kB":
        return (f"{server.base}{server.wheel}", {}) if server.wheel and server.name != "bare ASGI" else None
    page = server.page(MANY if "300" in scene else FEW)
    if scene != "conditional request":
        return page, headers
    plain = {**headers, "Accept-Encoding": "identity"}  # as wrk asks: each encoding has a tag of its own
    tag = httpx.get(page, headers=plain).headers.get("etag")
    return (page, {**headers, "If-None-Match": tag}) if tag else None


def load(server: Server, url: str, headers: dict[str, str], seconds: int) -> tuple[float, float]:
    """Return requests a second, and microseconds of processor time that one costs the server."""
    given = [f"-H{name}: {value}" for name, value in headers.items()]
    before = server.processor_seconds()
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", *given, url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = server.processor_seconds() - before
    if "Non-2xx" in said and "If-None-Match" not in headers:
        raise RuntimeError(f"{server.name} does not respond `{url}`:\n{said}")
    requests = re.search(r"(\d+) requests in", said)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert requests is not None
    assert rate is not None
    return float(rate[1]), used / max(int(requests[1]), 1) * 1e6


def large_wheel(running: list[Server], given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return requests a second for a file of 2 MB, from nginx and from the hub with nginx before it."""
    samples: dict[str, list[float]] = {}
    for _ in range(given.repetitions):
        for server in running:
            name = "bench_large-1.0.0-py3-none-any.whl"
            ours = server.name.startswith("wander")
            path = f"/admin/files/bench-large/{name}" if ours else f"/files/{name}"
            if ours or server.name in ("nginx", "FastAPI"):
                rate, _ = load(server, f"{server.base}{path}", {}, given.seconds)
                samples.setdefault(server.name, []).append(rate)
    return {name: {"requests_per_second": statistics.median(rates)} for name, rates in samples.items()}


def installs(work: Path, running: list[Server], repetitions: int) -> dict[str, float]:
    """Return the seconds that uv needs without a cache to resolve and install 40 packages per index."""
    samples: dict[str, list[float]] = {}
    for _ in range(repetitions):
        for server in running:
            if server.name in ("bare ASGI", "FastAPI", "devpi"):
                continue  # devpi has only what is measured on pages: it takes minutes to take the rest
            target = work / "installed"
            command = [
                servers.BIN / "uv",
                "pip",
                "install",
                "--quiet",
                "--no-cache",
                "--no-config",
                "--target",
            ]
            command += [
                target,
                "--python",
                sys.executable,
                "--default-index",
                f"{server.base}{server.simple}",
            ]
            started = time.perf_counter()
            subprocess.run([*command, "bench-pkg-000"], check=True)
            samples.setdefault(server.name, []).append(time.perf_counter() - started)
            assert len(list(target.glob("*.dist-info"))) == wheels.PROJECTS
            shutil.rmtree(target)
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def growth(work: Path, data: Path, given: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    """Return the rates of one page on a hub of few environments and on one of many."""
    found: dict[str, Any] = {"environments": given.environments}
    hubs: dict[str, Server] = {}
    for name, count in (("few", 100), ("many", given.environments)):
        folder = work / f"hub-of-{name}"
        folder.mkdir()
        with sqlite3.connect(data / "hub.db") as source, sqlite3.connect(folder / "hub.db") as copy:
            source.backup(copy)
        seed(folder / "hub.db", count)
        (folder / "token").write_text("not used")
        hubs[name] = stack.enter_context(servers.wander(work, folder, f"hub-of-{name}"))
    samples: dict[str, list[float]] = {name: [] for name in hubs}
    for _ in range(given.repetitions):
        for name, hub in hubs.items():
            samples[name].append(load(hub, hub.page(FEW), {"Accept": JSON_V1}, given.seconds)[0])
    return found | {name: statistics.median(rates) for name, rates in samples.items()}


def seed(path: Path, count: int) -> None:
    """Copy one environment and its page into the database until there are `count` of them."""
    with sqlite3.connect(path) as database:
        for table, column, key in (
            ("environments", "name", None),
            ("index_pages", "project", "environment_id"),
        ):
            names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            row = database.execute(f"SELECT * FROM {table} WHERE {column} = ?", (FEW,)).fetchone()
            known = dict(zip(names, row, strict=True))
            first = 1_000_000
            rows = (
                tuple({**known, column: f"seeded-{number}", key or "id": first + number}.values())
                for number in range(count)
            )
            marks = ", ".join("?" * len(names))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def machine() -> dict[str, Any]:
    return {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}


def markdown(report: dict[str, Any]) -> str:
    """Return the tables."""
    load_words = f"{report['load_before']:.1f} before and {report['load_after']:.1f} after"
    lines = [
        f"Measured {report['measured_at'][:10]} on {report['machine']['cores']} shared cores; "
        f"load {load_words}.",
        "Requests a second with 16 connections, medians; in brackets how many times that Wander answers.",
        "",
    ]
    names = list(dict.fromkeys(name for scene in report["scenes"].values() for name in scene))
    lines += ["| server | " + " | ".join(SCENES) + " |", "|---" * (len(SCENES) + 1) + "|"]
    for name in names:
        cells = [cell(report["scenes"][scene].get(name)) for scene in SCENES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += section(
        "Wheel of 2 MB, requests a second",
        report["large wheel"],
        lambda one: f"{one['requests_per_second']:,.0f}",
    )
    lines += section("uv installs 40 packages, seconds", report["installs"], lambda one: f"{one:.2f}")
    lines += section(
        f"Of {report['published wheels']} wheels one client publishes a second (processor milliseconds each)",
        report["published"],
        lambda one: f"{one[0]:.1f} ({one[1]:.1f})",
    )
    grown = report["growth"]
    rates = {"100 environments more": grown["few"], f"{grown['environments']:,} more": grown["many"]}
    lines += section("Page of 3 files, requests a second", rates, lambda one: f"{one:,.0f}")
    return "\n".join(lines) + "\n"


def cell(entry: dict[str, float] | None) -> str:
    if entry is None:
        return "-"
    return f"{entry['requests_per_second']:,.0f} ({entry['wander_times_this']:.2f})"


def section(title: str, values: dict[str, Any], shown: Callable[[Any], str]) -> list[str]:
    rows = [f"| {name} | {shown(value)} |" for name, value in values.items()]
    return ["", f"| {title} | |", "|---|---:|", *rows]


if __name__ == "__main__":
    sys.exit(main())
