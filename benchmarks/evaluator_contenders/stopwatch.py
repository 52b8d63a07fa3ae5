"""Code shared by the contenders: their arguments, and the line of JSON that they print.

Standard library only.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--n", type=int, required=True, help="rollouts")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--save", action="store_true", help="record every rollout on disk")
    parser.add_argument("--worker", action="store_true", help="run the environment in a process of its own")
    return parser.parse_args()


@contextmanager
def measured(rollouts: int) -> Iterator[dict[str, float]]:
    """Measure the time of a block. Yields the result."""
    result: dict[str, float] = {"rollouts": rollouts}
    started, cpu = time.perf_counter(), time.process_time()
    yield result
    result["seconds"] = time.perf_counter() - started
    result["cpu_seconds"] = time.process_time() - cpu


def report(result: dict[str, float]) -> None:
    """Print the result, and the peak memory of this process and of a child process."""
    unit = 1 << 20 if sys.platform == "darwin" else 1024
    for name, who in (
        ("peak_megabytes", resource.RUSAGE_SELF),
        ("child_megabytes", resource.RUSAGE_CHILDREN),
    ):
        result[name] = resource.getrusage(who).ru_maxrss / unit
    print(json.dumps(result), flush=True)
