from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from wander.models.batching import Batcher, Tell


class Squares:
    """Squares numbers and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()
        self.error: Exception | None = None

    def run(self, numbers: Sequence[int], tell: Tell[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error
        return [number * number for number in numbers]

    def batcher(self, quiet: float | None = None, size: int = 100) -> Batcher[int, int]:
        return Batcher(self.run, order=lambda n: n, max_batch_size=size, quiet_seconds=quiet)


async def test_a_batch_waits_for_all_running_rollouts() -> None:
    squares = Squares()
    batcher = squares.batcher()
    for name in "abc":
        batcher.begin(name)
    early = [asyncio.ensure_future(batcher.submit(name, n)) for name, n in (("a", 3), ("b", 1))]
    await asyncio.sleep(0.05)
    assert squares.batches == []
    assert await batcher.submit("c", 2) == 4
    assert await asyncio.gather(*early) == [9, 1]
    assert squares.batches == [[1, 2, 3]]
    assert squares.threads != {threading.get_ident()}
    batcher.close()


async def test_a_finished_rollout_releases_the_batch() -> None:
    squares = Squares()
    batcher = squares.batcher()
    batcher.begin("a")
    batcher.begin("b")
    waiting = asyncio.ensure_future(batcher.submit("a", 5))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    batcher.end("b")
    assert await waiting == 25
    batcher.close()


async def test_a_full_batch_or_a_pause_starts_sampling() -> None:
    squares = Squares()
    batcher = squares.batcher(quiet=0.05, size=2)
    for name in "abcd":
        batcher.begin(name)
    jobs = [asyncio.ensure_future(batcher.submit(name, n)) for n, name in enumerate("abc")]
    assert await asyncio.gather(*jobs) == [0, 1, 4]
    assert squares.batches == [[0, 1], [2]]
    batcher.close()


async def test_an_error_reaches_only_the_requests_of_its_batch() -> None:
    squares = Squares()
    batcher = squares.batcher()
    squares.error = ValueError("out of memory")
    jobs = await asyncio.gather(batcher.submit("a", 1), batcher.submit("b", 2), return_exceptions=True)
    assert all(isinstance(job, ValueError) for job in jobs)
    squares.error = None
    assert await batcher.submit("a", 3) == 9
    batcher.close()


async def test_a_canceled_request_is_not_sampled() -> None:
    squares = Squares()
    batcher = squares.batcher()
    batcher.begin("a")
    batcher.begin("b")
    waiting = asyncio.ensure_future(batcher.submit("a", 5))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    batcher.end("a")
    assert await batcher.submit("b", 6) == 36
    assert squares.batches == [[6]]
    batcher.close()


async def test_early_answers_let_rollouts_continue_until_the_next_batch() -> None:
    asked_again = threading.Event()
    batches = []

    def run(numbers: Sequence[int], tell: Tell[int]) -> list[int]:
        batches.append(list(numbers))
        if len(batches) == 1:  # a; b, whose code asks twice; c
            tell([(0, 10), (1, 20)])
            tell([(3, 40)])
            assert asked_again.wait(120)
        return [number * 10 for number in numbers]

    batcher: Batcher[int, int] = Batcher(run, order=lambda n: n, max_batch_size=9, quiet_seconds=None)
    for name in ("a/0", "b/0", "c/0"):
        batcher.begin(name)
    names = ("a/0", "b/0/sub:1", "b/0/sub:2", "c/0")
    asked = [asyncio.ensure_future(batcher.submit(name, n)) for n, name in enumerate(names, 1)]
    assert [await asked[0], await asked[3]] == [10, 40]
    assert not asked[1].done()  # else it might ask for the next before the other answer is there
    again = [asyncio.ensure_future(batcher.submit(name, n)) for n, name in ((6, "c/0"), (5, "a/0"))]
    await asyncio.sleep(0)
    asked_again.set()
    assert await asyncio.gather(asked[1], asked[2]) == [20, 30]
    batcher.end("b/0")
    assert await asyncio.gather(*again) == [60, 50]
    assert batches == [[1, 2, 3, 4], [5, 6]]
    batcher.close()


async def test_a_weight_update_waits_for_the_running_batch() -> None:
    goes_on, over = threading.Event(), []

    def run(numbers: Sequence[int], tell: Tell[int]) -> list[int]:
        tell([(0, 10)])
        assert goes_on.wait(120)
        over.extend(numbers)
        return [number * 10 for number in numbers]

    batcher: Batcher[int, int] = Batcher(run, order=lambda n: n, max_batch_size=9, quiet_seconds=None)
    for name in ("a/0", "b/0"):
        batcher.begin(name)
    first, second = (asyncio.ensure_future(batcher.submit(name, n)) for name, n in (("a/0", 1), ("b/0", 2)))
    assert await first == 10
    second.cancel()  # by its environment
    waiting = asyncio.ensure_future(asyncio.to_thread(batcher.wait))
    await asyncio.sleep(0)
    assert not waiting.done()
    goes_on.set()
    await waiting
    assert over == [1, 2]
    batcher.close()
