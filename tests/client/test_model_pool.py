"""Who has the machine next, of the evaluations of a suite that wait for it."""

from __future__ import annotations

import asyncio

from wander_client.models.pool import _Machine


async def test_the_pool_prefers_evaluations_of_the_loaded_model() -> None:
    machine, order, began = _Machine(), [], asyncio.Event()

    async def play(model: str, name: str) -> None:
        async with machine.fill_with(model):
            order.append(name)
            await began.wait()

    tasks = [
        asyncio.create_task(play(*each))
        for each in (("a", "1"), ("b", "2"), ("a", "3"), ("b", "4"), ("a", "5"))
    ]
    await asyncio.sleep(0)
    tasks[4].cancel()
    began.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["1", "3", "2", "4"]
    async with asyncio.timeout(60):
        await play("c", "6")
    assert order[-1] == "6", "the machine is free again"


async def test_an_evaluation_canceled_at_its_turn_lets_the_next_one_run() -> None:
    machine, order = _Machine(), []

    async def play(name: str) -> None:
        async with machine.fill_with("a"):
            order.append(name)

    async with machine.fill_with("a"):
        waiting = [asyncio.create_task(play(name)) for name in "12"]
        await asyncio.sleep(0)
    waiting[0].cancel()  # its turn has come, and it has not run since
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["2"]
