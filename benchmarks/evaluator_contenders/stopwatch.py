"""What every contender shares: its arguments, and the line of JSON that it prints. Standard library only."""

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
def measured(rollouts: int) -> Iterator[None]:
    """Time a block and print the result."""
    started, cpu = time.perf_counter(), time.process_time()
    yield
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    megabytes = peak / (1 << 20) if sys.platform == "darwin" else peak / 1024
    print(
        json.dumps(
            {
                "rollouts": rollouts,
                "seconds": seconds,
                "cpu_seconds": time.process_time() - cpu,
                "peak_megabytes": megabytes,
            }
        ),
        flush=True,
    )
