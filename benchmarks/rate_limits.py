"""Measures how much of an endpoint's capacity an evaluation uses if the endpoint refuses calls.

    python benchmarks/rate_limits.py            every kind of limit (about 10 minutes)
    python benchmarks/rate_limits.py --quick    a third of the calls

The endpoint is a separate process that answers after 0.1 s, and refuses calls according to
`endpoint_limits.py`. An evaluation plays rollouts of one turn, with at most 32 calls in flight. The share is
the endpoint's shortest possible time for all calls, divided by the duration of the
evaluation, including its start and end. The shortest time follows from the limit. Without a limit, it is the
duration of an evaluation without refusals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from endpoint_limits import AtRandom, InFlight, Limit, Outage, SlidingWindow, TokenBucket, Window
from instant_endpoint import completion, running_script
from wander import LocalEnvironment, SingleTurnEnv
from wander.clients.openai import OpenAIClient
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.wire import EnvironmentPin

LATENCY = 0.1
CONCURRENCY = 32
NO_LIMIT = "nothing refused"
KINDS = {kind.__name__: kind for kind in (AtRandom, TokenBucket, Window, SlidingWindow, InFlight, Outage)}


@dataclass(frozen=True)
class Case:
    """A kind of endpoint, and the number of calls to it."""

    name: str
    limit: Limit
    calls: int
    seconds: float | None
    """Shortest time for all calls, or None for the time without refusals and the outage."""
    outage: float = 0.0


@dataclass(frozen=True)
class Row:
    """Result of a case."""

    name: str
    seconds: float
    share: float
    refusals: int
    paused: float


def cases(size: float) -> Iterator[Case]:
    """Yield every case. `size` scales the number of calls."""
    calls = round(4800 * size)
    for share in (0.0, 0.001, 0.01, 0.02, 0.05, 0.08, 0.2):
        for retry_after in (None, 1.0) if share else (None,):
            name = (
                f"{share:.1%} refused at random{', Retry-After: 1' if retry_after else ''}"
                if share
                else NO_LIMIT
            )
            yield Case(name, AtRandom(share, retry_after), calls, None)
    rate = 50
    calls = round(1200 * size)
    for burst in (1, 5, rate):
        for retry_after in (None, 1.0):
            after = ", Retry-After: 1" if retry_after else ""
            name = f"{rate} calls a second, {burst} together{after}"
            yield Case(name, TokenBucket(rate, burst, retry_after), calls, (calls - burst) / rate)
    yield Case(f"{rate} calls in any second", SlidingWindow(rate, 1.0), calls, (calls - rate) / rate)
    for names_end in (True, False):
        windows = max(2, round(4 * size))
        name = f"300 calls in each 6 s{', Retry-After: the rest' if names_end else ''}"
        # The last window is partial: its calls are served as fast as the slots allow.
        yield Case(
            name,
            Window(300, 6.0, names_end),
            300 * windows,
            6.0 * (windows - 1) + 300 * LATENCY / CONCURRENCY,
        )
    for at_once in (4, 8, 16):
        calls = round(at_once / LATENCY * 20 * size)
        yield Case(f"{at_once} calls in flight", InFlight(at_once), calls, calls * LATENCY / at_once)
    calls = round(4800 * size)
    yield Case("an outage of 5 s", Outage(2.0, 7.0), calls, None, outage=5.0)


async def serve(limit: Limit) -> None:
    """Print the port, and serve until standard input closes."""
    from aiohttp import web

    body = completion()
    started = time.monotonic()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        now = time.monotonic()
        refusal = limit.ask(now - started, LATENCY)
        if refusal is not None:
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers=refusal)
        await asyncio.sleep(LATENCY - (time.monotonic() - now))
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def running(limit: Limit) -> AbstractContextManager[str]:
    """Run an endpoint for the duration of a block. Returns its base URL."""
    limit_fields = {name: value for name, value in vars(limit).items() if isinstance(value, int | float)}
    described = json.dumps([type(limit).__name__, limit_fields])
    return running_script(__file__, "--serve", described)


def read_limit(described: str) -> Limit:
    """Parse a limit written by `running`."""
    kind, values = json.loads(described)
    made: Any = KINDS[kind](**{name: value for name, value in values.items() if name in PARAMETERS[kind]})
    return made  # type: ignore[no-any-return]


PARAMETERS = {
    "AtRandom": ("share", "retry_after"),
    "TokenBucket": ("rate", "burst", "retry_after"),
    "Window": ("calls", "length", "names_end"),
    "SlidingWindow": ("calls", "length", "retry_after"),
    "InFlight": ("calls", "retry_after"),
    "Outage": ("start", "end"),
}


async def measure(case: Case, base_url: str) -> tuple[float, int, float]:
    """Return seconds, refusals and paused seconds of an evaluation with the calls of the case."""
    rows = [{"question": f"{number}?", "answer": "42"} for number in range(case.calls)]
    environment = LocalEnvironment(SingleTurnEnv(eval_dataset=rows, name="limits"))
    client = OpenAIClient("instant", base_url)
    pin = EnvironmentPin(name="limits", info=environment.info)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        plan = EvaluationPlan(concurrency=CONCURRENCY)
        result = await evaluate(environment, client, plan, Path(folder) / "run", pin, checked=True)
        seconds = time.perf_counter() - began
    await client.close()
    assert (result.summary.rollouts, result.summary.failed) == (case.calls, 0), result.summary
    return seconds, result.endpoints.refusals, result.endpoints.paused_seconds


def main(size: float, only: str, results: Path | None) -> None:
    """Measure every case and print the table."""
    rows: list[Row] = []
    unlimited = None
    print("| the endpoint | seconds | share of what it could serve | refused for one taken |")
    print("|---|---:|---:|---:|")
    for case in cases(size):
        if only not in case.name and case.name != NO_LIMIT:
            continue
        with running(case.limit) as base_url:
            seconds, refusals, paused = asyncio.run(measure(case, base_url))
        if case.name == NO_LIMIT:
            unlimited = seconds
        assert unlimited is not None
        shortest = unlimited + case.outage if case.seconds is None else case.seconds
        row = Row(case.name, seconds, shortest / seconds, refusals, paused)
        rows.append(row)
        print(f"| {row.name} | {seconds:.1f} | {row.share:.0%} | {refusals / case.calls:.2f} |", flush=True)
    if results is not None:
        results.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a third of the calls")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--results", type=Path, help="file for the figures, as JSON")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(read_limit(given.serve)))
    else:
        main(1 / 3 if given.quick else 1.0, given.only, given.results)
