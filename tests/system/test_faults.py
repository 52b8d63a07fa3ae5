"""`scripts/faults.py`: what it hurts together, it can make well again."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from gpu_scripts import gpu_script
from hub_cluster import BUCKET, DATABASE, FRONT, Loopback


def test_parts_start_in_the_order_of_their_dependencies() -> None:
    started: list[str] = []

    def part(name: str) -> Any:
        return SimpleNamespace(name=name, kill=lambda: None, start=lambda: started.append(name))

    servers, workers = ([part(f"{kind}{number}") for number in (1, 2)] for kind in ("server", "worker"))
    every = [part(DATABASE), part(BUCKET), *servers, *workers, part(FRONT)]
    parts = {one.name: one for one in every}
    cluster: Any = SimpleNamespace(network=Loopback(), parts=parts, servers=servers, workers=workers)
    faults = gpu_script("scripts/faults.py").Faults(cluster, random.Random(2))
    faults.kinds = {"kill": (faults.kill, list(parts))}
    for _ in range(20):
        started.clear()
        with faults.some(len(every)):
            assert started == []
        assert started[:4] == [DATABASE, BUCKET, "server1", "server2"]
        assert {*started[4:]} == {"worker1", "worker2", FRONT}
