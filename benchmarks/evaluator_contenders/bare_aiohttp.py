"""The minimum for any evaluator: send the same requests with aiohttp, and read the answers."""

from __future__ import annotations

import asyncio

import aiohttp
from stopwatch import arguments, measured, report


async def main() -> None:
    given = arguments()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(number: int) -> None:
            messages = [{"role": "user", "content": f"What is {number}+1?"}]
            for _ in range(given.turns):
                body = {"model": "instant", "messages": messages}
                async with session.post(f"{given.url}/chat/completions", json=body) as response:
                    answer = await response.json()
                    assert answer["choices"][0]["message"]["content"]
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "next"}]

        async def work(numbers: range) -> None:
            jobs = iter(numbers)

            async def worker() -> None:
                for number in jobs:
                    await one(number)

            await asyncio.gather(*(worker() for _ in range(min(given.concurrency, len(numbers)))))

        await work(range(8))
        with measured(given.n) as result:
            await work(range(given.n))
        report(result)


asyncio.run(main())
